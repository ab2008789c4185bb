"""Orders in which configurations are measured: fixed ones, random ones, and by what each is worth to the choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.bench.active_pairs import Choice, Pair, cheapest_first
from tula_core.models.decision.beliefs import step_belief
from tula_core.models.decision.information import Belief, contenders, expected_regret, knowledge_gradient
from tula_core.models.inference.fitting import Z90
from tula_core.models.step.communication import fit_links
from tula_core.models.step.fit import StepTimeModel, fit_step_time
from tula_core.records.profile import StepTiming

Array = NDArray[np.float64]

MOST = 15
"""So many configurations are measured at most."""
SETTLED = 0.01
"""Measuring stops where knowing everything would be worth less than this share of the time."""
_NOISE_SD = 0.03  # of one measurement
_GRADIENT_BYTES = 1e8  # not recorded; what an all-reduce takes is learnt from the recorded synchronisation


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Where a policy stands after ``measurements``; ``unsettled`` is the expected regret by its own belief."""

    measurements: int
    regret: float
    unsettled: float | None = None
    settled: bool = False


def screen(pair: Pair) -> list[int]:
    """Return what every policy begins with: the smallest and the largest batch on the fewest accelerators."""
    order = cheapest_first(pair.timings)
    first = pair.timings[order[0]]
    world = [i for i in order if _world(pair.timings[i]) == _world(first)]
    return list(dict.fromkeys([world[0], world[-1]]))


def sweep(pair: Pair) -> list[int]:
    """Return the order of a fixed sweep: the local batches of one world after the other, by doublings.

    The fewest accelerators come first, then all of one node, then all there are, then the rest from large to small.
    """
    order = cheapest_first(pair.timings)
    worlds = list(dict.fromkeys(_world(pair.timings[i]) for i in order))
    one_node = [world for world in worlds if world[0] == 1] or worlds
    wanted = dict.fromkeys([one_node[0], one_node[-1], worlds[-1], *reversed(worlds)])
    chosen: list[int] = []
    for world in wanted:
        largest = 0
        for index in (i for i in order if _world(pair.timings[i]) == world):
            if pair.timings[index].local_batch >= 2 * largest:
                chosen.append(index)
                largest = pair.timings[index].local_batch
    return chosen


def cheap(pair: Pair) -> list[int]:
    """Return the cheap profile of two nodes, then everything else, both from few accelerators to many."""
    order = cheapest_first(pair.timings)
    return [i for i in order if pair.known_first[i]] + [i for i in order if not pair.known_first[i]]


def at_random(pair: Pair, seed: int) -> list[int]:
    """Return a random order."""
    return [int(i) for i in np.random.default_rng(seed).permutation(len(pair.timings))]


def follow(pair: Pair, order: Sequence[int], counts: Sequence[int]) -> dict[str, list[Point]]:
    """Return where a fixed order stands for each choice of the pair, after each of ``counts`` measurements."""
    seen = list(dict.fromkeys([*screen(pair), *order]))
    found: dict[str, list[Point]] = {choice.name: [] for choice in pair.choices}
    for count in (count for count in counts if count <= len(seen)):
        log_times = np.log(_fit(pair, seen[:count]).predict(pair.shapes)[0])
        for choice in pair.choices:
            point = Point(measurements=count, regret=pair.regret(choice, log_times))
            found[choice.name].append(point)
    return found


def by_worth(pair: Pair, choice: Choice) -> Iterator[Point]:
    """Yield where measuring by worth stands after each measurement, the screen first.

    The next one is that which is worth most to the choice; once nothing unknown is worth `SETTLED`, it is a choice that
    was not itself measured. Beyond that it goes on while anything is worth something, so that policies can be compared
    at equal numbers.
    """
    seen, shapes = screen(pair), pair.shapes
    while True:
        belief = step_belief(_fit(pair, seen), shapes, choice.log_weight)
        parts = [belief.of(group) for group in choice.groups]
        unsettled = float(np.mean([expected_regret(part) for part in parts]))
        regret = pair.regret(choice, belief.mean - choice.log_weight)
        picks = [int(group[part.best]) for group, part in zip(choice.groups, parts, strict=True)]
        unmeasured = [pick for pick in picks if pick not in seen]
        settled = unsettled < SETTLED and not unmeasured
        yield Point(measurements=len(seen), regret=regret, unsettled=unsettled, settled=settled)
        gains = _gains(choice, parts, len(shapes.nodes))
        gains[seen] = 0.0
        nothing = gains.max() <= 0.0
        if len(seen) >= min(MOST, len(gains)) or (settled and nothing):
            return
        if unmeasured and unsettled < SETTLED:
            seen.append(unmeasured[0])
        else:
            seen.append(_hopeful(belief, seen) if nothing else int(gains.argmax()))


def _hopeful(belief: Belief, seen: Sequence[int]) -> int:
    """Return what may still be the best where no measurement alone would change a choice: the lowest lower end."""
    lower = belief.mean - Z90 * np.sqrt(np.maximum(np.diag(belief.covariance), 0.0))
    lower[list(seen)] = np.inf
    return int(lower.argmin())


def _gains(choice: Choice, parts: Sequence[Belief], count: int) -> Array:
    """Return what measuring each configuration is worth to all groups together, shape (count,)."""
    gains = np.zeros(count)
    for group, part in zip(choice.groups, parts, strict=True):
        near = contenders(part)
        gains[group[near]] += knowledge_gradient(part, near, _NOISE_SD)
    return gains


def _fit(pair: Pair, seen: Sequence[int]) -> StepTimeModel:
    links = fit_links([], device="cuda", link_gbps=None)
    return fit_step_time([pair.timings[i] for i in seen], links, device="cuda", gradient_bytes=_GRADIENT_BYTES)


def _world(timing: StepTiming) -> tuple[int, int]:
    return (timing.nodes, timing.processes_per_node)
