"""Runs openai-agents' hosted multi-agent model, unmodified, in the client's own environment.

    python openai_agents_hosted.py JOB

JOB is the JSON of a `Job`. One JSON line tells, for each run, what the client made of it. Nothing
of this project is installed here, so nothing of it is imported.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"
from __future__ import annotations

import asyncio
import sys
from typing import Any, Literal

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.extensions.experimental.hosted_multi_agent import OpenAIHostedMultiAgentModel
from agents.result import RunResultBase
from openai import AsyncOpenAI
from pydantic import BaseModel

SLOWNESS_S = 0.5
OUTPUT = "function_call_output"


class Job(BaseModel):
    """What to run: the prompts, one after another on one model object.

    `carry` is how a later run comes to know of the one before it: the whole history is sent
    again, or the id of its Response, or nothing.
    """

    base_url: str
    model: str
    prompts: list[str]
    carry: Literal["history", "id", "nothing"] = "nothing"
    is_streamed: bool = False


class Run(BaseModel):
    """What the client reports of one run."""

    final_output: str
    usage: dict[str, Any]
    answers: dict[str, str]
    """Outputs by call id, as the client keeps them in its history."""


class Report(BaseModel):
    """What is printed."""

    runs: list[Run]


@function_tool
async def look_up(city: str) -> str:
    """The weather."""
    return f"sunny in {city}"


@function_tool
async def look_up_slowly(city: str) -> str:
    """The weather, from afar."""
    await asyncio.sleep(SLOWNESS_S)
    return f"foggy in {city}"


@function_tool
async def break_down(city: str) -> str:
    """The weather, from an instrument that is broken."""
    raise RuntimeError(f"no instrument in {city}")


async def run_all(job: Job) -> Report:
    """Runs the job.

    Raises:
        Exception: whatever the client raises.
    """
    client = AsyncOpenAI(api_key="none", base_url=f"{job.base_url}/v1", max_retries=0)
    agent = Agent(
        name="Weather",
        instructions="Answer from the tools.",
        model=OpenAIHostedMultiAgentModel(job.model, openai_client=client),
        tools=[look_up, look_up_slowly, break_down],
    )
    runs: list[Run] = []
    last: RunResultBase | None = None
    for prompt in job.prompts:
        last = await _run(agent, prompt, last, job)
        runs.append(_told(last))
    return Report(runs=runs)


async def _run(
    agent: Agent[Any], prompt: str, last: RunResultBase | None, job: Job
) -> RunResultBase:
    said: Any = prompt
    options: dict[str, Any] = {}
    if last is not None and job.carry == "history":
        said = [*last.to_input_list(), {"role": "user", "content": prompt}]
    if last is not None and job.carry == "id":
        options["previous_response_id"] = last.last_response_id
    if not job.is_streamed:
        return await Runner.run(agent, said, **options)
    streamed = Runner.run_streamed(agent, said, **options)
    async for _ in streamed.stream_events():
        pass
    return streamed


def _told(result: RunResultBase) -> Run:
    usage = result.context_wrapper.usage
    history: list[Any] = result.to_input_list()
    outputs = [item for item in history if item.get("type") == OUTPUT]
    return Run(
        final_output=str(result.final_output),
        usage={
            "requests": usage.requests,
            "input_tokens": usage.input_tokens,
            "cached_tokens": usage.input_tokens_details.cached_tokens,
            "output_tokens": usage.output_tokens,
            "reasoning_tokens": usage.output_tokens_details.reasoning_tokens,
            "total_tokens": usage.total_tokens,
        },
        answers={str(item["call_id"]): str(item["output"]) for item in outputs},
    )


if __name__ == "__main__":
    set_tracing_disabled(True)
    report = asyncio.run(run_all(Job.model_validate_json(sys.argv[1])))
    print(report.model_dump_json())
