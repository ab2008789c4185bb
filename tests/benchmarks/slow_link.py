"""Time and accuracy of a small batch, and of what ``auto`` chooses, over an emulated slow link between two machines.

``python -m tests.benchmarks.slow_link [--quick]`` joins two network namespaces by a link of 1 Gbit/s and trains
Fashion-MNIST's perceptron on 20,000 images in them. The small batch trains on both machines. ``auto`` is what the
planner takes from a probe of one of them, see `tests.benchmarks.slow_link_choice`. As a slow link may well not be worth
its use, ``both`` is what it takes of the runs that use both machines, at their end at least, with the lowest confidence
that a job may ask for. It needs Linux, root, and ``ip`` and ``tc`` of iproute2.

Seconds are those of a run from the moment its processes are ready: evaluations, checkpoints and, where a run goes on
with other processes, their start are part of them. Both machines are this one: two cores at least, and quiet, are
needed for seconds that mean something, while steps and accuracy do not depend on that.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.benchmarks.generalization_jobs import FULL, QUICK
from tests.benchmarks.network_link import Link, missing_for_link
from tests.benchmarks.slow_link_choice import (
    KEPT_WITHIN,
    MACHINES,
    Weighed,
    asked_job,
    choose,
    ends_on_both,
    probe,
    weigh,
)
from tests.benchmarks.slow_link_runs import PROBE_BYTES, Row, Setting, seen_gbps, train
from tula_core.errors import InputError
from tula_core.mitigations.batches.stages import batch_of, processes_of
from tula_core.records import Candidate
from tula_core.search.odds import EVEN_CHANCE

FASTER, BELOW_POINTS = 4.0, 100 * KEPT_WITHIN
_JOB, _RATE = "mlp-20k", 0.05
_UNITS = {"kbit": 1e-6, "mbit": 1e-3, "gbit": 1.0}


def link_gbps(rate: str) -> float:
    """Return the Gbit/s of a rate as ``tc`` writes it.

    >>> link_gbps("1gbit"), link_gbps("250mbit")
    (1.0, 0.25)
    """
    found = re.fullmatch(r"([0-9.]+)(kbit|mbit|gbit)", rate)
    if found is None:
        raise InputError(f"--rate: {rate!r} is no rate. Write a number with kbit, mbit or gbit, as 1gbit.")
    return float(found.group(1)) * _UNITS[found.group(2)]


def chosen_rows(weighed: Sequence[Weighed], confidence: float, small: int) -> list[Row]:
    """Return the small batch on both machines, and what the planner takes: of all runs, and of those on both."""
    return [
        Row(name="small", candidate=Candidate(nodes=MACHINES, processes_per_node=1, local_batch=small // MACHINES)),
        *(
            Row(name=name, candidate=item.candidate, chosen=item)
            for name, item in (
                ("auto", choose(weighed, confidence)),
                ("both", choose([item for item in weighed if ends_on_both(item.candidate)], EVEN_CHANCE)),
            )
        ),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Probe, choose, train and print; return 0, or 2 where the machine cannot emulate a link."""
    options = _parsed(arguments)
    lacking = missing_for_link()
    if lacking is not None:
        print(f"slow_link: {lacking}", file=sys.stderr)
        return 2
    scale, seeds = (QUICK, 1) if options.quick else (FULL, options.seeds)
    bench = replace(scale.jobs[_JOB], small_batch=options.small, epochs=options.epochs)
    job, profile = probe(asked_job(scale, bench, _RATE, link_gbps(options.rate)))
    weighed = weigh(job, profile)
    rows = chosen_rows(weighed, job.constraints.confidence, options.small)
    print(f"of {len(weighed)} candidates, after a probe of one machine for {profile.probe.used_s:.0f} s:")
    print("\n".join(_choice(row) for row in rows if row.chosen is not None), flush=True)
    results = _results(Setting(scale=scale, bench=bench, rate=_RATE), rows, seeds, options.rate)
    print("\n".join(report(rows, results)))
    return 0


def _results(setting: Setting, rows: Sequence[Row], seeds: int, rate: str) -> list[dict[str, Any]]:
    """Train all runs over one link, in turns; its speed is printed as soon as it is known."""
    results = []
    with Link(rate) as link:
        size = f"{PROBE_BYTES / 1e6:.0f} MB"
        print(f"link of {rate}: {seen_gbps(link):.2f} Gbit/s seen in an all-reduce of {size}", flush=True)
        for seed in range(seeds):
            for row in rows if seed % 2 == 0 else rows[::-1]:
                results.append(train(setting, row, seed, link))
                print(f"{row.name}, seed {seed}: {results[-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    return results


def _choice(row: Row) -> str:
    """Return what the planner took and what it forecast of it."""
    assert row.chosen is not None
    chance = "unknown" if row.chosen.chance is None else f"{row.chosen.chance:.2f}"
    return (
        f"{row.name:5} {described(row.candidate)}: forecast {row.chosen.time_s:.1f} s with its start, at most "
        f"{BELOW_POINTS:g} points below with a chance of {chance}"
    )


def described(candidate: Candidate) -> str:
    """Return how a candidate trains, in words."""
    methods = ", ".join(candidate.mitigation) or "no method"
    stages = [f"{batch_of(stage)} on {processes_of(stage)}" for stage in candidate.stages or ()]
    way = ", then ".join(stages) if stages else f"{candidate.global_batch} on {candidate.processes}"
    return f"global batch {way} ({methods})"


def report(rows: Sequence[Row], results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines to print: a row each, then those after the first against the bars."""
    found = {row.name: [result for result in results if result["row"] == row.name] for row in rows}
    lines = [_line(row, found[row.name]) for row in rows]
    small = found[rows[0].name]
    by_seed = {result["seed"]: result["accuracy"] for result in small}
    for row in rows[1:]:
        own = found[row.name]
        ratio = statistics.fmean(_values(small, "seconds")) / statistics.fmean(_values(own, "seconds"))
        below = [100 * (by_seed[result["seed"]] - result["accuracy"]) for result in own]
        mean = statistics.fmean(below)
        lines += [
            f"{row.name}: {ratio:.2f} times faster (bar: at least {FASTER:g}): {_verdict(ratio >= FASTER)}",
            f"{row.name}: {mean:.2f} +- {_error(below)} points below, by seeds (bar: at most {BELOW_POINTS:g}): "
            f"{_verdict(mean <= BELOW_POINTS)}",
        ]
    return lines


def _line(row: Row, results: Sequence[Mapping[str, Any]]) -> str:
    seconds, accuracies = _values(results, "seconds"), [100 * value for value in _values(results, "accuracy")]
    return (
        f"{row.name:5} {described(row.candidate)}: {statistics.fmean(seconds):.1f} +- {_error(seconds)} s, "
        f"{statistics.fmean(_values(results, 'steps')):.0f} steps, "
        f"{statistics.fmean(accuracies):.2f} +- {_error(accuracies)} %, {len(results)} seeds"
    )


def _values(results: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(result[name]) for result in results]


def _error(values: Sequence[float]) -> str:
    """Return the standard error of the mean; unknown from one value."""
    return f"{statistics.stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else "?"


def _verdict(kept: bool) -> str:
    return "kept" if kept else "MISSED"


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="1gbit", help="of the link, as tc writes it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--small", type=int, default=64, help="global batch, and the one that the rate belongs to")
    parser.add_argument("--quick", action="store_true", help="few images and one seed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
