"""No growth with depth: a turn late in a long session costs what it cost early.

Two measurements of our server, both without an engine's time:

- Sessions of many turns whose tool outputs are pages of real text, no two alike. After the warm-up,
  latency may rise by so many percent of its median per 100 turns. The line is fitted by least
  squares to all sessions together; its upper 95 % bound is a bootstrap over sessions.
- Two sessions side by side, one with a hundred times the other's context, turn by turn.

    python -m bench.depth [--quick] [--json FILE] [--seed N]
"""

from __future__ import annotations

import asyncio
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

from msgspec import Struct

from agentloop.tokens.vocabulary import vocabulary
from bench import driver, kit
from bench.figures import paired_ratio, slope, spread, upper_bound
from bench.kit import OURS, Check, Placement, Report

GROWTH_PERCENT_MAX: Final = 10.0
CONTEXT_RATIO_MAX: Final = 1.15
SESSION_TIMEOUT_S: Final = 120.0
PAGE_CHARS: Final = 4_096
TURN_TOKENS: Final = 65  # what one paired turn adds, about
SHORT_OUTPUT: Final = "ok"  # so that the small context stays small


class Sizes(Struct, frozen=True):
    """How much is run. `pairs` are the paired turns of each pair of sessions."""

    sessions: int = 10
    turns: int = 200
    warm_up_turns: int = 20
    contexts: int = 20
    pairs: int = 16
    warm_up_pairs: int = 4
    small_tokens: int = 2_000
    large_tokens: int = 200_000


QUICK: Final = Sizes(sessions=5, contexts=5)

Session = list[float]  # the latency of each turn after the warm-up, microseconds


def library_text(seed: int) -> Iterator[str]:
    """The source files of Python's standard library, in an order that the seed decides."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in folder.rglob("*.py") if "site-packages" not in path.parts)
    Random(seed).shuffle(paths)
    for path in paths:
        yield path.read_text(encoding="utf-8", errors="replace")


def pages(seed: int, count: int) -> list[str]:
    """Different pages of real text, `PAGE_CHARS` each."""
    found: dict[str, None] = {}
    for text in library_text(seed):
        starts = range(0, len(text) - PAGE_CHARS + 1, PAGE_CHARS)
        found.update(dict.fromkeys(text[start : start + PAGE_CHARS] for start in starts))
        if len(found) >= count:
            break
    return list(found)[:count]


def prompt(seed: int, tokens: int) -> str:
    """Real text of about so many tokens."""
    encode, parts, left = vocabulary().encode, [], tokens
    for text in library_text(seed):
        ids = encode(text)
        parts.append(vocabulary().decode(ids[:left]))
        left -= len(ids)
        if left <= 0:
            break
    return "".join(parts)


# -- many turns --------------------------------------------------------------------------------


async def measure_turns(server: kit.Server, sizes: Sizes, seed: int) -> list[Session]:
    """Sessions one after the other; one more before them warms the server up."""
    sessions = []
    await _session(server, sizes, seed + sizes.sessions)
    for number in range(sizes.sessions):
        sessions.append(await _session(server, sizes, seed + number))
        kit.progress(
            f"session {number + 1} of {sizes.sessions}: {sizes.turns} turns,"
            f" median {median(sessions[-1]):.0f} us"
        )
    return sessions


async def _session(server: kit.Server, sizes: Sizes, seed: int) -> Session:
    outputs = pages(seed, sizes.turns)
    async with asyncio.timeout(SESSION_TIMEOUT_S), driver.linked(server.url) as client:
        await client.create(driver.scripted([driver.TOOL_TURN] * (len(outputs) + 1)))
        latencies_us = [(await client.answer(text)).latency_s * 1e6 for text in outputs]
    return latencies_us[sizes.warm_up_turns :]


def growth_percent(sessions: Sequence[Session]) -> float:
    """Percent of the median turn by which the fitted line rises in 100 turns."""
    points = [(turn, us) for session in sessions for turn, us in enumerate(session)]
    return 100 * 100 * slope(points) / median(us for _, us in points)


# -- much context ------------------------------------------------------------------------------


class Context(Struct):
    """A pair of sessions: the median turn of each, and the tokens of its middle measured turn."""

    small_us: float
    large_us: float
    small_tokens: int
    large_tokens: int


async def measure_contexts(server: kit.Server, sizes: Sizes, seed: int) -> list[Context]:
    """Pairs of sessions, new ones each time."""
    contexts = []
    for number in range(sizes.contexts):
        context = await _context(server, sizes, seed + number)
        contexts.append(context)
        kit.progress(
            f"contexts {number + 1} of {sizes.contexts}: {context.small_us:.0f} us with"
            f" {context.small_tokens:,} tokens, {context.large_us:.0f} us with"
            f" {context.large_tokens:,}"
        )
    return contexts


async def _context(server: kit.Server, sizes: Sizes, seed: int) -> Context:
    turns = [driver.TOOL_TURN] * (sizes.warm_up_pairs + sizes.pairs + 1)
    small_us, large_us = Session(), Session()
    async with (
        asyncio.timeout(SESSION_TIMEOUT_S),
        driver.linked(server.url) as small,
        driver.linked(server.url) as large,
    ):
        grown_tokens = len(turns) * TURN_TOKENS // 2  # so that the middle turn has the size
        for client, tokens in (small, sizes.small_tokens), (large, sizes.large_tokens):
            await client.create(driver.scripted(turns, prompt(seed, tokens - grown_tokens)))
        order = [(small, small_us), (large, large_us)]
        middle = sizes.warm_up_pairs + sizes.pairs // 2
        small_tokens = large_tokens = 0
        for number in range(sizes.warm_up_pairs + sizes.pairs):
            if number == middle:
                small_tokens, large_tokens = small.input_tokens, large.input_tokens
            for client, latencies_us in order:
                turn = await client.answer(SHORT_OUTPUT)
                latencies_us.append(turn.latency_s * 1e6)
            order.reverse()  # neither is always the first of its pair
    skipped = sizes.warm_up_pairs
    return Context(
        small_us=median(small_us[skipped:]),
        large_us=median(large_us[skipped:]),
        small_tokens=small_tokens,
        large_tokens=large_tokens,
    )


def _median_tokens(contexts: list[Context]) -> tuple[int, int]:
    """The small and the large context as measured."""
    return (
        round(median(context.small_tokens for context in contexts)),
        round(median(context.large_tokens for context in contexts)),
    )


# -- the report --------------------------------------------------------------------------------


def report(sessions: list[Session], contexts: list[Context], sizes: Sizes, seed: int) -> Report:
    """The table, and the bounds on growth and on the ratio of contexts."""
    growth = growth_percent(sessions)
    growth_upper = upper_bound(sessions, growth_percent, Random(seed))
    small_us = [context.small_us for context in contexts]
    large_us = [context.large_us for context in contexts]
    ratio = paired_ratio(large_us, small_us)
    deep = [spread([_third(session, index) for session in sessions]) for index in (0, 2)]
    last_turn = sizes.turns
    rows = [
        ("", "median us a turn"),
        (f"the first third of turns {sizes.warm_up_turns} to {last_turn}", deep[0].show()),
        ("the last third of them", deep[1].show()),
        (f"{_median_tokens(contexts)[0]:,} tokens of context", spread(small_us).show()),
        (f"{_median_tokens(contexts)[1]:,} tokens of context", spread(large_us).show()),
        ("growth per 100 turns, % of the median", f"{growth:.2f}, at most {growth_upper:.2f}"),
        ("large context / small, paired", ratio.show(3)),
    ]
    figures = {
        "growth_percent_per_100_turns": growth,
        "growth_upper_95": growth_upper,
        "growth_method": "pooled least squares, percentile bootstrap over sessions, one-sided",
        "context_ratio": ratio,
        "session_medians_us": [median(session) for session in sessions],
        "contexts": contexts,
    }
    checks = [
        Check("growth per 100 turns, %, upper 95 % bound", growth_upper, GROWTH_PERCENT_MAX),
        Check("turn with the large context to the small", ratio.median, CONTEXT_RATIO_MAX),
    ]
    return Report("depth", sizes, rows, figures, checks)


def _third(session: Session, index: int) -> float:
    size = len(session) // 3
    return median(session[index * size : (index + 1) * size])


async def bench(options: kit.Options, placement: Placement) -> Report:
    """Measure and report."""
    sizes = QUICK if options.is_quick else Sizes()
    async with kit.serving([OURS], placement) as (server,):
        sessions = await measure_turns(server, sizes, options.seed)
        contexts = await measure_contexts(server, sizes, options.seed)
    return report(sessions, contexts, sizes, options.seed)


if __name__ == "__main__":
    kit.main(bench, __doc__ or "")
