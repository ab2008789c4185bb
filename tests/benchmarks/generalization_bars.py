"""The bars of the benchmark: what ``auto`` has to reach, and whether it did.

The true gap is what the plain large batch lacks where both it and the small batch fit their training images; where the
plain one does not, the best tuned large batch takes its place, and where that does not either, nothing is claimed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.generalization_jobs import BenchJob
from tests.benchmarks.generalization_methods import AUTO, AUTO_CONTROL, BEST_FIXED, PLAIN, REFERENCE
from tests.benchmarks.generalization_summary import Cell, Cells, paired, recovery

OVER_PLAIN_POINTS = 8.0
BELOW_SMALL_POINTS = -0.5
STEPS_SHARE = 0.4
RECOVERED = 0.5
FULL_TRAINING_PCT = 99.0  # "about 100 %"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar in words, what was found, and whether it was met; None where it was not measured."""

    text: str
    found: str
    met: bool | None


def bars(benches: Sequence[BenchJob], found: Cells) -> list[Bar]:
    """Return every bar of a scale's jobs; one that is not whole leaves the bars of the mean unmeasured."""
    averaged = [bench for bench in benches if bench.averaged]
    gaps = [bench for bench in benches if not bench.averaged]
    return [
        _mean_bar(averaged, found, PLAIN, OVER_PLAIN_POINTS, "plain large batch"),
        *(_near_small(bench, found) for bench in averaged),
        _mean_bar(averaged, found, AUTO_CONTROL, 0.0, "best tuned fixed batch of equal steps"),
        *(_true_gap(bench, found) for bench in gaps),
    ]


def reference_lines(benches: Sequence[BenchJob], found: Cells) -> list[str]:
    """Return a line for each job whose small batch has a known figure: whether it was reached."""
    lines = []
    for bench in benches:
        cell = found.get((bench.name, REFERENCE))
        if cell is None or bench.reference_accuracy is None:
            continue
        known = 100.0 * bench.reference_accuracy
        reached = cell.accuracy.mean + (cell.accuracy.error or 0.0) >= known
        verdict = (
            "reached within its standard error" if reached else f"NOT reached, {known - cell.accuracy.mean:.2f} below"
        )
        lines.append(
            f"{bench.name}: the small batch gave {cell.accuracy}, the figure known for it is {known:.1f}: {verdict}"
        )
    return lines


def _mean_bar(benches: Sequence[BenchJob], found: Cells, other: str, least: float, title: str) -> Bar:
    text = f"auto minus {title}, mean of {len(benches)} jobs: at least {least:+.1f} points"
    differences = {bench.name: _difference(found, bench, other) for bench in benches}
    known = {name: value for name, value in differences.items() if value is not None}
    if not known or len(known) < len(differences):
        return Bar(text=text, found=_list(known) or "no job is whole", met=None)
    mean = statistics.fmean(known.values())
    return Bar(text=text, found=f"{mean:+.2f} ({_list(known)})", met=mean >= least)


def _list(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:+.2f}" for name, value in values.items())


def _difference(found: Cells, bench: BenchJob, other: str) -> float | None:
    pair = _cells(found, bench, AUTO, other)
    return pair[0].accuracy.mean - pair[1].accuracy.mean if pair else None


def _near_small(bench: BenchJob, found: Cells) -> Bar:
    text = (
        f"{bench.name}: auto minus small batch, paired over seeds: at least {BELOW_SMALL_POINTS:+.1f} within its "
        f"standard error, at most {100 * STEPS_SHARE:.0f} % of its steps"
    )
    pair = _cells(found, bench, AUTO, REFERENCE)
    if not pair:
        return Bar(text=text, found="not whole", met=None)
    auto, small = pair
    difference, share = paired(auto.by_seed, small.by_seed), auto.steps / small.steps
    met = difference.mean + (difference.error or 0.0) >= BELOW_SMALL_POINTS and share <= STEPS_SHARE
    return Bar(text=text, found=f"{difference} at {100 * share:.0f} % of the steps", met=met)


def _true_gap(bench: BenchJob, found: Cells) -> Bar:
    text = (
        f"{bench.name}: auto recovers at least {100 * RECOVERED:.0f} % of the gap between small and large batch, "
        "both at about 100 % training accuracy"
    )
    trio = _cells(found, bench, AUTO, REFERENCE, PLAIN, BEST_FIXED)
    if not trio:
        return Bar(text=text, found="not whole", met=None)
    auto, small, plain, tuned = trio
    base = plain if _fitted(plain) else tuned
    gap = paired(small.by_seed, base.by_seed)
    facts = (
        f"gap {gap} to the row '{base.row.name}', training accuracy {small.train_accuracy} and {base.train_accuracy}"
    )
    if not (_fitted(small) and _fitted(base)):
        return Bar(text=text, found=f"no true gap to measure: {facts}", met=None)
    share = recovery(auto.accuracy.mean, base.accuracy.mean, small.accuracy.mean)
    if share is None:
        return Bar(text=text, found=f"there is no gap: {facts}", met=None)
    return Bar(text=text, found=f"{100 * share:.0f} % ({facts})", met=share >= RECOVERED)


def _fitted(cell: Cell) -> bool:
    return cell.train_accuracy.mean >= FULL_TRAINING_PCT


def _cells(found: Cells, bench: BenchJob, *names: str) -> list[Cell]:
    """Return the cells of some rows of a job, none where one is missing."""
    cells = [found.get((bench.name, name)) for name in names]
    whole = [cell for cell in cells if cell is not None]
    return whole if len(whole) == len(cells) else []
