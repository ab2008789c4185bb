"""The candidates: which layouts of processes and which batch sizes are looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tula_core.job import Cluster, Job
from tula_core.mitigations import Packages
from tula_core.mitigations.batches.stages import Course, begun_alone, grows, processes_of, staged
from tula_core.records import Candidate, Profile
from tula_core.records.candidate import PRECISION
from tula_core.search.constraints import memory_limit
from tula_core.search.forecaster import Forecaster

SMALLEST_SHARE = 4
"""The smallest global batch looked at is the reference batch divided by this."""
LARGEST_MULTIPLE = 64
"""The largest global batch looked at is the reference batch times this."""
ALL_UP_TO = 8
"""Up to this many nodes, or processes on one node, every number is looked at; above, powers of two and the most."""

MOST_WITH_EVERY_METHOD = 256
"""Up to this many candidates every package of methods is looked at."""
FIRST_PACKAGES = 3
"""Of more candidates only so many packages, those that are worth most."""

Key = tuple[int, int, int, int, int, str, float, int, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRange:
    """The global batches of interest, in samples: from ``low`` to ``high``, around ``reference``."""

    reference: int
    low: int
    high: int


def key(candidate: Candidate) -> Key:
    """Return what tells candidates of one job apart, in the order of the table."""
    c = candidate
    shape = (c.nodes, c.processes_per_node, c.global_batch, c.accumulation, c.local_batch)
    idle_first = c.processes - processes_of(c.stages[0]) if c.stages else 0
    return (*shape, c.precision or "", c.power_limit_w or 0.0, idle_first, c.mitigation)


def reference_key(candidates: Iterable[Candidate], batch: int) -> Key:
    """Return the key of the reference batch on one process, the one with the fewest micro-batches.

    It is in the recipe's own precision, of which an empty name comes first, and without a power limit.
    """
    plain = (c for c in candidates if c.precision is None and c.power_limit_w is None)
    alone = (c for c in plain if c.processes == 1 and c.global_batch == batch)
    return min(key(c) for c in alone)


def candidates(
    profile: Profile, job: Job, predictor: Forecaster, mitigation: tuple[str, ...] | Packages
) -> tuple[Candidate, ...]:
    """Return every candidate of a job, in the order of the table, none twice.

    The reference batch on one process is always among them, and so is whatever was measured within the cluster, also
    where it breaks a limit: then the plan says which. Each precision of ``job.precisions`` brings its own; each comes
    without a power limit, and with each of those that the cluster's accelerators may be given. Above the reference
    batch each package of methods brings its own, with local batches that leave room for what it keeps. Where a method
    grows the batch on a schedule, each is the end of its stages, once on its own processes from the beginning and once
    on one process as long as that takes the batch.
    """
    course = Course(recipe=job.recipe, train_samples=profile.facts.train_samples, options=job.mitigation_options)
    packages = mitigation if isinstance(mitigation, Packages) else Packages.alone(mitigation)
    plain, reference = _trained_with(packages.small, profile, job, predictor), job.recipe.batch_size
    if len(plain) * len(packages.large) > MOST_WITH_EVERY_METHOD:
        packages = packages.first(FIRST_PACKAGES)
    made = [candidate for candidate in plain if candidate.global_batch <= reference]
    for names in packages.large:
        found = plain if names == packages.small else _trained_with(names, profile, job, predictor)
        made += [candidate for candidate in found if candidate.global_batch > reference]
    # Batches that a schedule never comes to end at one that it does, which may be there already.
    grown = [
        candidate
        for candidate in (staged(each, course) for each in made)
        if not packages.several or candidate.stages is not None or not grows(candidate.mitigation)
    ]
    alone = (begun_alone(candidate, course) for candidate in grown)
    distinct = {key(candidate): candidate for candidate in (*grown, *alone) if candidate is not None}
    return tuple(distinct[place] for place in sorted(distinct))


def _trained_with(names: tuple[str, ...], profile: Profile, job: Job, predictor: Forecaster) -> list[Candidate]:
    """Return the candidates of all precisions and power limits that train with some methods, whatever the batch."""
    precisions: tuple[str | None, ...] = (None, *job.other_precisions)
    return [
        Candidate(
            nodes=nodes,
            processes_per_node=processes,
            local_batch=local,
            accumulation=parts,
            mitigation=names,
            options={} if precision is None else {PRECISION: precision},
            power_limit_w=limit,
        )
        for precision in precisions
        for nodes, processes, local, parts in _shapes(profile, job, _cap_of(profile, job, predictor, precision, names))
        for limit in (None, *power_limits(profile, job.cluster))
    ]


def _shapes(profile: Profile, job: Job, cap: Callable[[int, int], int | None]) -> set[tuple[int, int, int, int]]:
    """Return nodes, processes per node, local batch and accumulation of all candidates of one precision."""
    batch = job.recipe.batch_size
    wanted = BatchRange(
        reference=batch,
        low=max(1, batch // SMALLEST_SHARE),
        high=min(LARGEST_MULTIPLE * batch, profile.facts.train_samples),
    )
    # Batch norm over one sample learns that sample's own statistics, where it can be computed at all.
    least = 2 if profile.facts.has_batch_norm else 1
    found = {_reference_shape(batch, cap(1, 1))}
    for nodes, processes in layouts(job.cluster):
        shapes = batches(nodes * processes, wanted, cap(nodes, processes))
        found |= {(nodes, processes, local, accumulation) for local, accumulation in shapes if local >= least}
    return found | {
        (s.nodes, s.processes_per_node, s.local_batch, s.accumulation)
        for s in profile.steps
        if s.nodes <= job.cluster.nodes and s.processes_per_node <= job.cluster.processes_per_node
    }


def power_limits(profile: Profile, cluster: Cluster) -> list[float]:
    """Return the limits worth a look: those of the cluster that are below the one in force, ascending.

    Where the one in force could not be read, it is taken to be the highest of the cluster's.
    """
    asked = set(cluster.power_limits_w or ())
    present = max((use.limit_w for use in profile.power if use.limit_w is not None), default=max(asked, default=0.0))
    return sorted(limit for limit in asked if limit < present)


def layouts(cluster: Cluster) -> list[tuple[int, int]]:
    """Return pairs of nodes and processes per node.

    One node takes every number of processes up to eight; several nodes only the full number and powers of two, because
    nodes are paid whole.
    """
    pairs = []
    for nodes in _counts(cluster.nodes):
        processes = _counts(cluster.processes_per_node) if nodes == 1 else _geometric(cluster.processes_per_node)
        pairs += [(nodes, count) for count in processes]
    return pairs


def batches(processes: int, wanted: BatchRange, cap: int | None) -> set[tuple[int, int]]:
    """Return pairs of local batch and accumulation for one layout.

    Local batches are powers of two and the exact shares of the reference batch times a power of two; where the
    reference batch does not divide over the processes, its rounded share. Accumulation is used only above the largest
    local batch that ``cap`` admits.
    """
    ladder = {2**power for power in range((wanted.high // processes).bit_length()) if wanted.high >= processes}
    multiples = [wanted.reference * 2**power for power in range(LARGEST_MULTIPLE.bit_length())]
    shares = [wanted.reference // share for share in (2, SMALLEST_SHARE) if wanted.reference % share == 0]
    ladder |= {batch // processes for batch in multiples + shares if batch % processes == 0}
    ladder |= {wanted.reference // processes} - {0}
    admitted = [local for local in ladder if cap is None or local <= cap]
    found = {(local, 1) for local in admitted if wanted.low <= processes * local <= wanted.high}
    if cap is None or not admitted:
        return found
    top, parts = max(admitted), 2
    if 2 * top <= cap:
        return found
    while processes * top * parts <= wanted.high:
        if processes * top * parts >= wanted.low:
            found.add((top, parts))
        parts *= 2
    return found


def rounded_layouts(job: Job) -> list[int]:
    """Return the numbers of processes over which the reference batch does not divide."""
    counts = {nodes * processes for nodes, processes in layouts(job.cluster)}
    return sorted(count for count in counts if job.recipe.batch_size % count and count < job.recipe.batch_size)


def _cap_of(
    profile: Profile, job: Job, predictor: Forecaster, precision: str | None, names: tuple[str, ...]
) -> Callable[[int, int], int | None]:
    def cap(nodes: int, processes_per_node: int) -> int | None:
        limit = memory_limit(job, profile.hardware, processes_per_node)
        fits = None
        if limit is not None:
            fits = predictor.max_local_batch(nodes, processes_per_node, limit.size_bytes, precision, names)
        # Where not even one sample fits, one sample is still listed, so that the plan can say what it would need.
        bounds = [None if fits is None else max(fits, 1), job.constraints.max_local_batch]
        return min((bound for bound in bounds if bound is not None), default=None)

    return cap


def _reference_shape(batch: int, cap: int | None) -> tuple[int, int, int, int]:
    parts = 1
    if cap is not None and batch > cap:
        doublings = [2**power for power in range(batch.bit_length()) if batch % 2**power == 0]
        parts = next(count for count in [*doublings, *_divisors(batch)] if batch // count <= cap)
    return (1, 1, batch // parts, parts)


def _divisors(number: int) -> list[int]:
    """Return the divisors in rising order, in as many tries as the square root: a batch may be a prime near 10^12."""
    low = [count for count in range(1, math.isqrt(number) + 1) if number % count == 0]
    return low + [number // count for count in reversed(low) if number // count > low[-1]]


def _counts(most: int) -> list[int]:
    return list(range(1, most + 1)) if most <= ALL_UP_TO else _geometric(most)


def _geometric(most: int) -> list[int]:
    return sorted({2**power for power in range(most.bit_length())} | {most})
