"""Which world to measure next, as the parent of the measuring workers asks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.job import Job
from tula_core.models.decision.beliefs import step_belief
from tula_core.models.decision.information import gain_of_all
from tula_core.models.step.communication import fit_links
from tula_core.models.step.fit import fit_step_time
from tula_core.models.step.time import Shapes
from tula_core.profiling import worlds as plans
from tula_core.profiling.active import BLOCK_SD, log_weights
from tula_core.profiling.collector import Collector
from tula_core.profiling.worlds import World
from tula_core.records import Candidate, CommunicationTiming, Hardware, StepTiming, WorkloadFacts

Array = NDArray[np.float64]

USUAL_CRITICAL = 10.0
"""Critical batch in reference batches where no gradient noise is known, as the learning curves take it."""
_STEPS_OF_A_SIZE = 40  # timed and not, that a world spends on each of its local batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What the probe has found so far, and the machine it runs on."""

    job: Job
    facts: WorkloadFacts
    hardware: Hardware
    steps: Sequence[StepTiming]
    communication: Sequence[CommunicationTiming]
    critical_batch: float


def known_so_far(job: Job, facts: WorkloadFacts, hardware: Hardware, collector: Collector) -> Known:
    """Return what the workers have said, with the critical batch by their gradient noise or what is usual."""
    noise = None if collector.noise is None else collector.noise.noise_scale_samples
    return Known(
        job=job,
        facts=facts,
        hardware=hardware,
        steps=tuple(collector.steps.values()),
        communication=tuple(collector.communication.values()),
        critical_batch=noise or USUAL_CRITICAL * plans.reference_batch(job, facts),
    )


def worker_hints(known: Known, world: World, sizes: Sequence[int]) -> dict[str, object]:
    """Return what a worker of ``world`` is told for its own choice: ``log_weights`` by local batch, and ``rival``."""
    batches = [Candidate(nodes=world.nodes, processes_per_node=world.processes_per_node, local_batch=b) for b in sizes]
    weights = _weights(known, Shapes.of(batches)).tolist()
    found = {str(size): weight for size, weight in zip(sizes, weights, strict=True)}
    return {"log_weights": found, "rival": best_so_far(known, without=world)}


def sizes_of_choice(known: Known, worlds: Sequence[World], failed: int | None) -> dict[World, list[int]]:
    """Return the local batches of every world of the cluster, by doublings; those of ``worlds`` come first.

    None is larger than any that was timed: what was left out for memory or time is no candidate here. ``failed`` is the
    smallest local batch that did not fit in memory, if any.
    """
    largest = max(row.local_batch for row in known.steps)
    job, most = known.job, known.job.cluster
    cluster = [
        World(nodes=nodes, processes_per_node=processes)
        for nodes in plans.doublings(most.nodes)
        for processes in plans.doublings(most.processes_per_node)
    ]
    every = dict.fromkeys([*worlds, *cluster])
    found = {world: plans.local_batches(job, known.facts, world, below=failed) for world in every}
    return {world: [size for size in sizes if size <= largest] for world, sizes in found.items()}


def best_so_far(known: Known, without: World) -> float | None:
    """Return the least ln(objective) of what was timed in other worlds than ``without``; None where nothing was."""
    others = [row for row in known.steps if (row.nodes, row.processes_per_node) != _place(without)]
    if not others:
        return None
    shapes = Shapes.of(others)
    return float(np.min(np.log([row.step_time_s for row in others]) + _weights(known, shapes)))


def worth_of_worlds(
    known: Known, sizes: Mapping[World, Sequence[int]], waiting: Sequence[World], start_s: float
) -> tuple[World, float]:
    """Return the waiting world that is worth most for its seconds, and what all waiting ones together are worth.

    Parameters
    ----------
    sizes
        Local batches that the choice is among, for every world of the cluster, waiting or not, measurable or not.
    waiting
        Worlds that can be measured and were not, at least one.
    start_s
        What a start of workers takes.
    """
    places = [(world, size) for world, each in sizes.items() for size in each]
    shapes = Shapes.of(
        [Candidate(nodes=w.nodes, processes_per_node=w.processes_per_node, local_batch=size) for w, size in places]
    )
    links = fit_links(known.communication, device=known.hardware.device, link_gbps=known.job.cluster.link_gbps)
    device, gradients = known.hardware.device, known.facts.gradient_bytes
    model = fit_step_time(known.steps, links, device=device, gradient_bytes=gradients)
    belief = step_belief(model, shapes, _weights(known, shapes))
    step_s = np.exp(belief.mean - _weights(known, shapes))
    members = {world: [i for i, (place, _) in enumerate(places) if place == world] for world in waiting}
    rates = {
        world: gain_of_all(belief, own, BLOCK_SD) / (start_s + _STEPS_OF_A_SIZE * float(step_s[own].sum()))
        for world, own in members.items()
    }
    best = max(waiting, key=lambda world: rates[world])  # of equal ones the first
    together = [index for own in members.values() for index in own]
    return best, gain_of_all(belief, together, BLOCK_SD)


def _weights(known: Known, shapes: Shapes) -> Array:
    return log_weights(known.job, shapes.processes, shapes.nodes, shapes.local_batch, known.critical_batch)


def _place(world: World) -> tuple[int, int]:
    return (world.nodes, world.processes_per_node)
