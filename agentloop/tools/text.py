"""Text that is fit for a model and for the wire: no escape sequences, no control characters, no
lone surrogates, and a bound. Pure."""

from __future__ import annotations

import re

# ECMA-48: CSI (colours, cursor), the string sequences (OSC, DCS, SOS, PM, APC), other escapes.
# A string sequence whose end is missing stops at the end of its line.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_MARKER_CHARS = 48


def clean(text: str) -> str:
    """Remove escape sequences and control characters; tab, line and form feed, and carriage return
    stay. Surrogates become U+FFFD."""
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", _ESCAPES.sub("", text)))


def bounded(text: str, chars_max: int) -> str:
    """At most `chars_max` characters: head, a marker with the number of characters cut, tail."""
    if len(text) <= chars_max:
        return text
    half = max(chars_max - _MARKER_CHARS, 0) // 2
    cut = len(text) - 2 * half
    return joined(text[:half], f"{cut} characters", text[len(text) - half :])[:chars_max]


def joined(head: str, cut: str, tail: str) -> str:
    """Head and tail around a marker that names what is missing between them."""
    return f"{head}\n[... {cut} cut ...]\n{tail}"
