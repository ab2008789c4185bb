"""Backtest of active profiling: the regret of the choice after so many measurements, by what was measured.

Measuring a configuration reveals its recorded step time. After each measurement the step-time model is fitted anew and
chooses; regret is how much slower its choice is than the best recorded one. Nothing is learnt from other pairs beyond
the model's own priors, so that leaving a cluster out changes nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from tula_core.bench.active_pairs import Pair, read_pairs
from tula_core.bench.active_policies import MOST, SETTLED, Point, at_random, by_worth, cheap, follow, screen, sweep
from tula_core.bench.kind import Kind, Table

COLUMNS = ("cluster", "network", "choice", "policy", "measurements", "regret", "expected_regret", "settled")
COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, MOST)
"""Numbers of measurements at which the policies are compared."""
SEEDS = (0, 1)
WORTH, SWEEP, CHEAP, RANDOM = "worth", "sweep", "cheap", "random"


def simulate(folder: Path) -> pd.DataFrame:
    """Return the regret of every pair, choice and policy after each of `COUNTS` measurements.

    A policy that has stopped, because nothing is worth measuring any more or all is measured, keeps its last choice.
    """
    rows = [row for pair in read_pairs(folder) for row in _rows(pair)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(pair: Pair) -> Iterator[tuple[object, ...]]:
    fixed = {SWEEP: [sweep(pair)], CHEAP: [cheap(pair)], RANDOM: [at_random(pair, seed) for seed in SEEDS]}
    curves = {name: [follow(pair, order, COUNTS) for order in orders] for name, orders in fixed.items()}
    for choice in pair.choices:
        found = {name: [curve[choice.name] for curve in each] for name, each in curves.items()}
        found[WORTH] = [list(by_worth(pair, choice))]
        for policy, each in found.items():
            for count in (count for count in COUNTS if count >= len(screen(pair))):
                points = [_standing(points, count) for points in each]
                regret = float(np.mean([point.regret for point in points]))
                last = points[0]
                yield (pair.cluster, pair.network, choice.name, policy, count, regret, last.unsettled, last.settled)


def _standing(points: list[Point], count: int) -> Point:
    return [point for point in points if point.measurements <= count][-1]


def report(folder: Path, found: pd.DataFrame) -> list[Table]:
    """Return mean regret by number of measurements, what measuring by worth saves, and every pair."""
    tables = []
    for choice, rows in found.groupby("choice", sort=False):
        tables += [_curve(str(choice), rows), _by_pair(str(choice), rows)]
    return tables


def _curve(choice: str, rows: pd.DataFrame) -> Table:
    mean = 100 * rows.pivot_table(index="measurements", columns="policy", values="regret", aggfunc="mean")
    frame = mean[[SWEEP, CHEAP, RANDOM, WORTH]].add_suffix(" %")
    for policy in (SWEEP, CHEAP, RANDOM):
        frame[f"worth as good as {policy}"] = [_needed(mean[WORTH], level) for level in mean[policy]]
    note = (
        "Mean over pairs of the time lost by the choice against the best recorded one, after so many measurements. "
        "Last columns: with how many measurements by worth the mean is as good and stays so, up to "
        f"{MOST}. {_stop(rows)}"
    )
    return Table(title=f"Regret by measurements, {choice}", frame=frame.reset_index(), note=note)


def _needed(worth: pd.Series, level: float) -> float:
    """Return the fewest measurements from which on ``worth`` is at most ``level``; nan where there are none."""
    counts = worth.index.to_numpy(dtype=float)
    above = counts[worth.to_numpy() > level + 1e-9]
    after = counts[counts > max(above, default=0.0)]
    return float(min(after, default=float("nan")))


def stops(found: pd.DataFrame) -> pd.DataFrame:
    """Return the rows at which measuring by worth ended for each pair and choice: settled, or with the last one."""
    worth = found[found["policy"] == WORTH]
    ends = []
    for _, curve in worth.groupby(["choice", "cluster", "network"], sort=False):
        settled = curve[curve["settled"]]
        ends.append((settled if len(settled) else curve.tail(1)).iloc[0])
    return pd.DataFrame(ends, columns=list(COLUMNS))


def _stop(rows: pd.DataFrame) -> str:
    ends = stops(rows)
    settled = ends["settled"].astype(bool)
    return (
        f"Measuring by worth stops once settled, where less than {100 * SETTLED:g} % is expected to be lost: so "
        f"{_ended(ends[settled])}. At {MOST} measurements it is out of them: so {_ended(ends[~settled])}."
    )


def _ended(ends: pd.DataFrame) -> str:
    if ends.empty:
        return "0 pairs"
    lost, expected = 100 * ends["regret"], 100 * ends["expected_regret"]
    return (
        f"{len(ends)} pairs, after {ends['measurements'].mean():.1f} measurements in the mean, {lost.mean():.1f} % "
        f"lost on average and {lost.median():.1f} % in the median where {expected.mean():.1f} % was expected"
    )


def _by_pair(choice: str, rows: pd.DataFrame) -> Table:
    few = rows[rows["measurements"].isin([6, 12])]
    frame = 100 * few.pivot_table(index=["cluster", "network"], columns=["measurements", "policy"], values="regret")
    frame.columns = pd.Index([" ".join(str(part) for part in reversed(column)) for column in frame.columns.to_list()])
    return Table(title=f"Regret by pair, {choice}, %", frame=frame.reset_index(), note="After 6 and 12 measurements.")


def picture(folder: Path, found: pd.DataFrame, path: Path) -> bool:
    """Draw mean regret by measurements, and regret at the end beside what was expected; False without any pair."""
    if found.empty:
        return False
    from tula_core.plots.draw_regret import draw_regret

    curves = found.groupby(["choice", "policy", "measurements"], sort=False)["regret"].mean().reset_index()
    draw_regret(curves, stops(found), "tula bench active", path)
    return True


def leave_out(folder: Path) -> list[Table]:
    """Return nothing: this kind has no priors of its own, see the module's text."""
    return []


KIND = Kind(
    name="active",
    summary="regret of the choice after few measurements, taken by worth or in a fixed order.",
    columns=COLUMNS,
    source="petuum/adaptdl (branch osdi21-artifact), Apache-2.0; siasosp23/artifacts, no licence named",
    predict=simulate,
    score=report,
    leave_out=leave_out,
    picture=picture,
)
