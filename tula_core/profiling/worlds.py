"""What to measure: worlds of processes, local batches in each, and how the probe's time is shared. All pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tula_core.job import Job
from tula_core.records import Hardware, WorkloadFacts

LARGEST_FACTOR = 64  # the largest global batch measured, in reference batches
SMALLEST_DIVISOR = 4  # the smallest local batch measured is the reference over this
FIRST_SHARE = 0.5  # of the time after all starts, for one process where there are more worlds
LATER_START = 1.2  # later workers have more processes, which start more slowly
FEWEST_SECONDS = 1.5  # of measuring; less is not worth a start
_FEWEST_SCOUTED = 2  # samples; with one a network may take another path
_PILOT_WEIGHT = 2.0  # the world with the second pilot gets twice the time of another


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Nodes and processes on each."""

    nodes: int
    processes_per_node: int

    @property
    def processes(self) -> int:
        """All processes together."""
        return self.nodes * self.processes_per_node

    def __str__(self) -> str:
        processes = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return processes if self.nodes == 1 else f"{processes} on {self.nodes} nodes"


ONE = World(nodes=1, processes_per_node=1)


def doublings(largest: int) -> list[int]:
    """Return the powers of two up to ``largest``, and ``largest``.

    >>> doublings(6)
    [1, 2, 4, 6]
    """
    return sorted({2**power for power in range(largest.bit_length())} | {largest})


def worlds_to_measure(nodes: int, processes_per_node: int, devices: int) -> list[World]:
    """Return the worlds that fit ``devices``, the most telling first.

    One process comes first, then the largest world of one node, then the largest of all; the rest follow from large to
    small, so that a short probe leaves out the ones between.
    """
    on_one = [World(nodes=1, processes_per_node=count) for count in doublings(processes_per_node) if count <= devices]
    spread = [
        World(nodes=count, processes_per_node=processes_per_node)
        for count in doublings(nodes)
        if count > 1 and count * processes_per_node <= devices
    ]
    first = [ONE, on_one[-1], *spread[-1:]]
    rest = sorted([*on_one, *spread], key=lambda world: -world.processes)
    return list(dict.fromkeys([*first, *rest]))


def limits_of_one_machine(nodes: int, processes_per_node: int, hardware: Hardware) -> list[str]:
    """Return warnings about what this machine cannot show of the cluster."""
    said = []
    wanted, has = nodes * processes_per_node, hardware.devices
    kind = "cores" if hardware.device == "cpu" else "accelerators"
    if processes_per_node > has:
        said.append(
            f"{processes_per_node} processes per node do not fit the {has} {kind} here: "
            f"more than {has} are extrapolated, not measured"
        )
    if nodes > 1 and wanted > has:
        said.append(f"{nodes} nodes with {wanted} processes do not fit the {has} {kind} here: they are extrapolated")
    elif nodes > 1:
        said.append(f"{nodes} nodes were emulated by processes on one machine: the links between real nodes are slower")
    return said


def local_batches(job: Job, facts: WorkloadFacts, world: World, *, below: int | None = None) -> list[int]:
    """Return the local batches to measure, ascending: the reference batch's share and its doublings.

    One process also gets two halvings; several processes with less than the reference batch are of no use to anyone.
    None is smaller than the network can train on; empty where the data or the job's limit leave no size.

    Parameters
    ----------
    below
        A size that did not fit: only those under it are left, or where there is none, its halvings.
    """
    reference = reference_batch(job, facts)
    floor = _floor(facts)
    top = min(facts.train_samples, LARGEST_FACTOR * reference) // world.processes
    top = min(top, job.constraints.max_local_batch or top)
    if top < facts.smallest_batch:
        return []
    middle = max(facts.smallest_batch, min(reference // world.processes, top))
    smallest = max(min(floor, middle), middle // SMALLEST_DIVISOR) if world == ONE else middle
    sizes = [middle, *_halvings(middle, smallest), *_doublings_of(middle, top)]
    if below is not None:
        sizes = [size for size in sizes if size < below] or _halvings(below, floor)
    return sorted(sizes)


def smaller_sizes(facts: WorkloadFacts, size: int) -> list[int]:
    """Return the halvings of a local batch that the network can train on, ascending, ``size`` left out."""
    return sorted(_halvings(size, max(_floor(facts), _FEWEST_SCOUTED)))


def _floor(facts: WorkloadFacts) -> int:
    return max(facts.smallest_batch, 2 if facts.has_batch_norm else 1)


def _halvings(size: int, smallest: int) -> list[int]:
    return [size // 2**power for power in range(1, size.bit_length()) if size // 2**power >= smallest]


def _doublings_of(size: int, largest: int) -> list[int]:
    return [size * 2**power for power in range(1, (largest // size).bit_length())]


def reference_batch(job: Job, facts: WorkloadFacts) -> int:
    """Return the recipe's batch size, cut to the training set."""
    return min(job.recipe.batch_size, facts.train_samples)


def large_pilot_batch(reference: int, samples: int) -> int:
    """Return the second pilot's global batch: eight references, fewer where an epoch would have under four steps.

    Where even twice the reference is too much for the data, it is a quarter of the reference.
    """
    for factor in (8, 4, 2):
        if factor * reference * 4 <= samples:
            return factor * reference
    return max(1, reference // 4)


def shares(worlds: Sequence[World], pilot_world: World) -> list[float]:
    """Return each world's share of the time after all starts; they sum to 1, the one-process world is first."""
    if len(worlds) == 1:
        return [1.0]
    weights = [_PILOT_WEIGHT if world == pilot_world else 1.0 for world in worlds[1:]]
    return [FIRST_SHARE, *((1 - FIRST_SHARE) * weight / sum(weights) for weight in weights)]


def own_seconds(left_s: float, start_s: float, *, share: float, later_starts: int) -> float:
    """Return the seconds a worker may measure: its share of what is left after its start and those that follow.

    As many later starts are counted as leave each worker the fewest seconds worth a start; with none, all is its own.

    >>> own_seconds(20.0, 4.0, share=0.5, later_starts=1)
    5.6
    >>> own_seconds(20.0, 9.0, share=0.5, later_starts=1)
    11.0
    """
    for kept in range(later_starts, 0, -1):
        after_starts = left_s - start_s * (1 + LATER_START * kept)
        if after_starts >= (1 + kept) * FEWEST_SECONDS:
            return max(share * after_starts, FEWEST_SECONDS)
    return max(left_s - start_s, FEWEST_SECONDS)
