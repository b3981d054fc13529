"""The standard tools together, as an agent uses them."""

from __future__ import annotations

from pathlib import Path

from agentloop.clock import Clock, WallClock, run_virtual
from agentloop.tools.standard import standard_toolbox


async def test_one_task_through_all_file_tools(tmp_path: Path) -> None:
    box = standard_toolbox(tmp_path, WallClock())
    patch = "*** Begin Patch\\n*** Add File: hi.py\\n+print(40 + 2)\\n*** End Patch"
    assert await box.call("apply_patch", f'{{"patch": "{patch}"}}') == "done:\nA hi.py"
    assert await box.call("read_file", '{"path": "hi.py"}') == "     1\tprint(40 + 2)"
    assert await box.call("shell", '{"cmd": "python hi.py"}') == "exit code: 0\n42\n"


async def test_output_of_a_program_is_clean(tmp_path: Path) -> None:
    box = standard_toolbox(tmp_path, WallClock())
    cmd = r"printf '\\033[31mred\\033[0m\\0 \\xff\\xed\\xa0\\x80'"
    output = await box.call("shell", f'{{"cmd": "{cmd}"}}')
    assert output == "exit code: 0\nred " + "\ufffd" * 4


async def test_a_runaway_program_is_cut_once(tmp_path: Path) -> None:
    box = standard_toolbox(tmp_path, WallClock())
    output = await box.call("shell", '{"cmd": "yes | head -c 1000000"}')
    assert len(output) <= 40_000
    assert output.count(" cut ...]") == 1


def test_the_tools_and_how_often_they_may_run(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        box = standard_toolbox(tmp_path, clock)
        kinds = {tool.name: box.kind_of(tool.name) for tool in box.definitions()}
        assert kinds == {
            "shell": "once",
            "read_file": "pure",
            "apply_patch": "once",
            "web_search": "pure",
        }

    run_virtual(main)
