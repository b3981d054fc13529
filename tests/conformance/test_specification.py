"""The specification in the notes is what the template, the transcripts and the code say.

`AGENTLOOP_UPDATE=1 python -m pytest tests/conformance/test_specification.py` writes it anew.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from agentloop import errors
from agentloop.errors import LimitExceeded, ProtocolError
from agentloop.wire.items import AnyItem
from tests.conformance.specification import (
    anchor,
    error_codes,
    messages,
    render,
    server_events,
    subclasses,
    type_name,
    typed_items,
)

ROOT = Path(__file__).parents[2]
NOTE = ROOT / "notes/protocol.md"
TEMPLATE = (ROOT / "tests/conformance/protocol.md.in").read_text()
TRANSCRIPTS = {
    path.stem: path.read_text() for path in (ROOT / "tests/conformance/transcripts").glob("*.txt")
}
MODULES = [
    import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for package in ("admission", "behaviors", "core", "link", "loop", "serve", "server", "wire")
    for path in sorted((ROOT / "agentloop" / package).glob("[a-z]*.py"))
]


def used(directive: str) -> Counter[str]:
    return Counter(re.findall(rf"^\{{\{{{directive} (.+)\}}\}}$", TEMPLATE, re.MULTILINE))


def test_note_is_what_is_rendered() -> None:
    expected = render(TEMPLATE, TRANSCRIPTS, MODULES)
    if os.environ.get("AGENTLOOP_UPDATE"):
        NOTE.write_text(expected)
    assert NOTE.is_file(), f"write it: {__doc__}"
    assert NOTE.read_text() == expected, f"write it anew: {__doc__}"


def test_every_transcript_is_shown_once() -> None:
    assert used("transcript") == Counter(TRANSCRIPTS.keys()), "place it in protocol.md.in"


def test_every_message_has_its_table() -> None:
    assert used("message") == Counter(messages().keys()), "place it in protocol.md.in"


def test_every_event_has_its_table() -> None:
    assert used("event") == Counter(server_events().keys()), "place it in protocol.md.in"


def test_every_item_has_its_table() -> None:
    assert used("item") == Counter(typed_items().keys()), "place it in protocol.md.in"


def test_every_link_leads_somewhere() -> None:
    shown = render(TEMPLATE, TRANSCRIPTS, MODULES)
    headings = [anchor(title) for title in re.findall(r"^#+ (.+)$", shown, re.MULTILINE)]
    assert set(re.findall(r"\]\(#([^)]*)\)", shown)) <= set(headings)


# -- the renderer ----------------------------------------------------------------------------------


def shown(template: str, **transcripts: str) -> str:
    return render(template, transcripts, MODULES)


def test_transcript_is_its_comment_and_its_lines() -> None:
    text = "# One rule,\n# in two lines.\n@ wait 1s\nC> {}\n"
    expected = "**`name`** One rule, in two lines.\n\n```text\n@ wait 1s\nC> {}\n```\n"
    assert shown("{{transcript name}}", name=text) == expected


def test_table_shows_type_default_and_meaning() -> None:
    template = "{{fields}}\nevent_id: shared\n\n{{message response.close}}\n{}\nstream_id: own"
    table = shown(template.replace("{}", "response_id: two\n  lines"))
    assert "| `response_id` | string or null | `null` | two lines |" in table
    assert "| `event_id` | string or null | `null` | shared |" in table
    assert "| `stream_id` | string or null | `null` | own |" in table


def test_table_without_defaults_has_no_column_for_them() -> None:
    table = shown("{{event response.replay.done}}\nresponse_id: which")
    assert table.splitlines()[2:] == [
        "| field | type | meaning |",
        "| --- | --- | --- |",
        "| `response_id` | string | which |",
    ]


def test_value_is_the_codes() -> None:
    assert shown("up to {{value WAITING_MAX}}") == "up to 16\n"
    assert shown("{{value DEFAULT_LIMITS.message_bytes}} each") == "16 MiB each\n"
    assert shown("{{value LIVE_BYTES_MAX}} in all") == "8 GiB in all\n"
    assert "| at most 16 |" in shown("{{fields}}\nevent_id: at most {{value WAITING_MAX}}")


def test_table_keeps_its_columns() -> None:
    assert "| a \\| b |" in shown("{{fields}}\nevent_id: a | b")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{levitate}}", "no directive 'levitate'"),
        ("{{transcript absent}}", "no transcript 'absent'"),
        ("{{message response.levitate}}", "no 'response.levitate'"),
        ("{{event response.replay.done}}", "nothing explains response_id"),
        ("{{event response.replay.done}}\nresponse_id: x\nmore: y", "no more to explain"),
        ("{{errors}}\nserver_error: x", "nothing explains"),
        ("{{states}}\nidle: x", "explains no table"),
        ("in a line {{states}} of text", "line of its own"),
        ("up to {{value LEVITATION_MAX}}", "no one constant 'LEVITATION_MAX'"),
    ],
)
def test_mistake_in_the_template_is_told(template: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        shown(template)


@pytest.mark.parametrize(
    ("hint", "name"),
    [
        (str | None, "string or null"),
        (list[int], "list of integer"),
        (dict[str, Any], "object"),
        (Literal["a", "b"], '`"a"` or `"b"`'),
        (list[AnyItem], "list of [item](#items)"),
        (msgspec.Raw | msgspec.UnsetType, "any JSON"),
    ],
)
def test_types_have_names(hint: Any, name: str) -> None:
    assert type_name(hint) == name


def test_errors_are_those_that_are_raised() -> None:
    source = (
        'raise LimitExceeded(f"{x}", code="too_many") if a else ProtocolError("x")\n'
        "raise EngineFault('x', code='overloaded', is_retryable=True)"
    )
    expected = {"invalid_input": ProtocolError, "too_many": LimitExceeded}
    assert error_codes([(source, vars(errors))]) == expected


def test_errors_are_those_that_a_modules_names_stand_for() -> None:
    """Two modules may each have a class of this name."""
    source = "raise Refused('x')"
    assert error_codes([(source, {"Refused": ProtocolError})]) == {"invalid_input": ProtocolError}
    assert error_codes([(source, {})]) == {}


def test_classes_are_those_that_agentloop_defines() -> None:
    class Made(errors.ClientFault):
        """An error of this test's."""

    assert Made in errors.ClientFault.__subclasses__()
    found = set(subclasses(errors.AgentLoopError))
    assert found >= {errors.ClientFault, ProtocolError}
    assert Made not in found
