"""What the benches compute from their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from random import Random

RESAMPLES: Final = 2_000

T = TypeVar("T")


class Spread(Struct, frozen=True):
    """The median of a figure over its runs, with its least and greatest value."""

    median: float
    least: float
    greatest: float
    runs: int

    def show(self, digits: int = 1) -> str:
        """`median (least to greatest)`."""
        middle, least, greatest = (
            f"{value:,.{digits}f}" for value in (self.median, self.least, self.greatest)
        )
        return f"{middle} ({least} to {greatest})"


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    return Spread(median(values), min(values), max(values), len(values))


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """The spread of the ratios of values that were measured in the same round."""
    return spread([one / other for one, other in zip(above, below, strict=True)])


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that this percentage of the values does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line through (x, y) by least squares."""
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in points)
    return covariance / sum((x - x_mean) ** 2 for x, _ in points)


def upper_bound(
    runs: Sequence[T], figure: Callable[[Sequence[T]], float], source: Random, percent: float = 95
) -> float:
    """The one-sided upper bound of a figure of the runs: the percentile bootstrap over whole runs
    (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13)."""
    resampled = (figure(source.choices(runs, k=len(runs))) for _ in range(RESAMPLES))
    return percentile(resampled, percent)
