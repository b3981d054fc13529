"""Continuing a script from recorded ids: a retry re-plans the turn and skips what was said."""

from __future__ import annotations

from agentloop.engine.api import Part, Sample, Script


def skip_ids(script: Script, count: int) -> Script:
    """The script after its first `count` ids. Stalls and faults before that point are behind."""
    if count == 0:
        return script
    parts: list[Part] = []
    for part in script.parts:
        if isinstance(part, Sample) and count > 0:
            skipped, count = min(count, len(part.ids)), count - len(part.ids)
            if skipped < len(part.ids):
                parts.append(Sample(part.ids[skipped:], part.is_easy))
        elif count <= 0:
            parts.append(part)
    return Script(tuple(parts))
