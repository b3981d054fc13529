"""The README's picture: one real session at three engine speeds, every turn's time to scale.

    python -m bench.picture notes/session.svg

Runs the bundled task once per profile and draws what `agentloop run --json` reports: the phases of
each turn, one row a profile. Inference is modelled; everything else is measured on this machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from agentloop.breakdown import TurnBreakdown

PROFILES: Final = ("gpu65", "spark1000", "spark4000")
COLOURS: Final = {
    "inference": "#c3ccd9",
    "api": "#d1495b",
    "client": "#2e86ab",
    "network": "#edae49",
}
LABELS: Final = {
    "inference": "inference (modelled)",
    "api": "API",
    "client": "tools",
    "network": "loopback and client",
}
WIDTH, LEFT, ROW, BAR, TOP = 960, 130, 84, 34, 74
RUN_TIMEOUT_S: Final = 120


class _Breakdown(Struct):
    turns: list[TurnBreakdown]
    total: TurnBreakdown


class _Report(Struct):
    turns: int
    breakdown: _Breakdown


def measure(profile: str) -> _Report:
    """One session of the bundled task."""
    command = [sys.executable, "-m", "agentloop", "run", "--json", "--profile", profile]
    done = subprocess.run(command, capture_output=True, check=True, timeout=RUN_TIMEOUT_S)
    return msgspec.json.decode(done.stdout, type=_Report)


def draw(reports: dict[str, _Report]) -> str:
    """The picture as SVG."""
    height = TOP + ROW * len(reports) + 16
    rows = [
        line
        for index, (profile, report) in enumerate(reports.items())
        for line in _row(profile, report, TOP + ROW * index)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            ' font-family="system-ui, sans-serif" font-size="14">',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            '<text x="16" y="26" font-size="17" font-weight="600" fill="#1c2430">One agent session,'
            " one Response: where the time of each turn goes</text>",
            *_legend(),
            *rows,
            "</svg>\n",
        ]
    )


def _legend() -> Iterator[str]:
    x = 16
    for name, colour in COLOURS.items():
        yield f'<rect x="{x}" y="40" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 18}" y="51" fill="#3b4654">{LABELS[name]}</text>'
        x += 40 + 8 * len(LABELS[name])


def _row(profile: str, report: _Report, y: int) -> Iterator[str]:
    spans = [_phases(turn) for turn in report.breakdown.turns]
    total_ms = sum(sum(span.values()) for span in spans)
    scale = (WIDTH - LEFT - 24) / total_ms
    share = 1 - _phases(report.breakdown.total)["inference"] / total_ms
    yield f'<text x="16" y="{y + 23}" font-weight="600" fill="#1c2430">{profile}</text>'
    x = float(LEFT)
    for span in spans:
        yield f'<path d="M{x:.1f} {y - 4}v{BAR + 8}" stroke="#1c2430" stroke-width="1"/>'
        for name in ("api", "inference", "client", "network"):
            width = span[name] * scale
            yield (
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"'
                f' fill="{COLOURS[name]}"/>'
            )
            x += width
    yield (
        f'<text x="{LEFT}" y="{y + BAR + 24}" fill="#3b4654">{total_ms / 1e3:.2f} s for'
        f" {report.turns} turns; {share:.0%} of it is not inference</text>"
    )


def _phases(turn: TurnBreakdown) -> dict[str, float]:
    phases = turn.phases
    return {
        "inference": phases.inference_ms,
        "api": phases.api_ms,
        "client": phases.client_ms,
        "network": phases.network_ms,
    }


def main() -> None:
    """Parse the command line, run, draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.picture", description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    reports: dict[str, _Report] = {}
    for profile in PROFILES:
        print(f"running the bundled task on {profile}", file=sys.stderr)
        reports[profile] = measure(profile)
    out.write_text(draw(reports))
    print(out)


if __name__ == "__main__":
    main()
