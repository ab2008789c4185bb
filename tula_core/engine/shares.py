"""How the samples of an epoch are shared out: into steps, among processes, into micro-batches. Pure, without torch.

Training and planning ask these same functions, so that a plan knows of every odd step a run will take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tula_core.errors import InputError
from tula_core.mitigations.batches.dual import LEAST_SAMPLES, update_sizes


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How a global batch is spread: processes x local batch x accumulation samples.

    ``shares`` says where processes take uneven parts of it: the weight of each, and the samples in each of the updates
    that it makes of them. Without it all parts are near-equal.
    """

    processes: int
    local_batch: int
    accumulation: int = 1
    shares: tuple[tuple[float, int], ...] | None = None

    @property
    def global_batch(self) -> int:
        """Samples in one full step."""
        return self.processes * self.local_batch * self.accumulation


def step_sizes(samples: int, layout: Layout) -> list[int]:
    """Return the samples of each step of one epoch; they sum to ``samples``, none exceeds the global batch.

    The tail is a step of its own. Where it is too small to give each process two samples (batch norm needs them),
    the last two steps share theirs evenly instead, so no sample is dropped and no step is larger than planned.

    Raises
    ------
    InputError
        There are fewer samples than one global batch.
    """
    if samples < layout.global_batch:
        raise InputError(
            f"global batch: {layout.global_batch} samples is more than the training set's {samples}. "
            f"Choose nodes x processes x local batch x accumulation of at most {samples}."
        )
    return window_sizes(samples, layout)


def window_sizes(samples: int, layout: Layout) -> list[int]:
    """Return the same for the rest of an epoch, which may be less than one global batch."""
    full, last = _full_and_last(samples, layout)
    return [layout.global_batch] * full + last


def _full_and_last(samples: int, layout: Layout) -> tuple[int, list[int]]:
    """Return how many steps are full, and the sizes of the one or two smaller ones after them."""
    full, tail = divmod(samples, layout.global_batch)
    if tail and full and tail < 2 * layout.processes and (layout.global_batch + tail) // 2 > tail:
        both = layout.global_batch + tail
        return full - 1, [both - both // 2, both // 2]
    return full, [tail] if tail else []


def tail_is_shared(samples: int, layout: Layout) -> bool:
    """Return whether an epoch's last step would be so small that it is shared with the step before."""
    return len(_full_and_last(samples, layout)[1]) == 2


def split(total: int, parts: int) -> list[int]:
    """Return ``parts`` sizes that sum to ``total`` and differ by at most one, larger ones first."""
    base, extra = divmod(total, parts)
    return [base + (index < extra) for index in range(parts)]


def own_samples(total: int, layout: Layout) -> list[int]:
    """Return the samples of each process in a step of ``total``; two for each at least, where there are as many.

    >>> own_samples(100, Layout(processes=2, local_batch=64, shares=((1.0, 64), (0.5, 8))))
    [66, 34]
    """
    if layout.shares is None:
        return split(total, layout.processes)
    least = min(LEAST_SAMPLES, total // layout.processes)
    rest = total - least * layout.processes
    weights = [weight for weight, _ in layout.shares]
    wanted = [rest * weight / sum(weights) for weight in weights]
    own = [int(samples) for samples in wanted]
    by_remainder = sorted(range(layout.processes), key=lambda rank: (own[rank] - wanted[rank], rank))
    for rank in by_remainder[: rest - sum(own)]:
        own[rank] += 1
    return [least + samples for samples in own]


def micro_batch_sizes(step_samples: int, layout: Layout, rank: int) -> list[int]:
    """Return the micro-batch sizes of ``rank`` in a step; none exceeds the local batch.

    Raises
    ------
    InputError
        The step has fewer samples than processes, so a process would have none.
    """
    if step_samples < layout.processes:
        raise InputError(
            f"local batch: a step of {step_samples} samples leaves some of {layout.processes} processes without any. "
            "Use fewer processes or another batch size."
        )
    own = own_samples(step_samples, layout)[rank]
    updates = [own] if layout.shares is None else update_sizes(own, layout.shares[rank][1])
    return [size for part in updates for size in split(part, -(-part // layout.local_batch))]


class Part(NamedTuple):
    """A micro-batch of one process.

    ``begin`` and ``end`` are places in the step, ``counted`` is how many samples the micro-batch counts for, and
    ``repeats`` how often each of its samples is in it; see `rest_parts`.
    """

    begin: int
    end: int
    counted: int
    repeats: int


def is_small_rest(samples: int, layout: Layout) -> bool:
    """Return whether a step has too few samples for two on each process."""
    return samples < 2 * layout.processes


def repeats(size: int, layout: Layout) -> int:
    """Return how often each sample is in a micro-batch of the rest of an epoch: one that is alone is paired."""
    return 2 if size == 1 and layout.local_batch > 1 else 1


def rest_parts(samples: int, layout: Layout, rank: int) -> list[Part]:
    """Return the micro-batches of ``rank`` in a step of fewer than two samples for each process.

    As many processes as can take two samples each, and a last odd one goes to the last of them. The others take the
    first two as well and count for none, because all have to take part in a step. A sample that has to be alone is
    paired with itself and counts once: batch norm can train on no single one. Where processes make updates of their
    own, which are averaged afterwards, those that take samples again count them as theirs.

    >>> rest_parts(3, Layout(processes=2, local_batch=8), 0), rest_parts(3, Layout(processes=2, local_batch=8), 1)
    ([Part(begin=0, end=3, counted=3, repeats=1)], [Part(begin=0, end=2, counted=0, repeats=1)])
    >>> rest_parts(1, Layout(processes=1, local_batch=8), 0)
    [Part(begin=0, end=1, counted=1, repeats=2)]
    """
    taking = max(1, samples // 2)
    begin = 2 * rank
    end = samples if rank == taking - 1 else begin + 2
    if rank >= taking:
        begin, end = 0, min(2, samples)
    counts = rank < taking or layout.shares is not None
    updates = [end - begin] if layout.shares is None else update_sizes(end - begin, layout.shares[rank][1])
    parts = []
    for size in (size for update in updates for size in split(update, -(-update // layout.local_batch))):
        parts.append(Part(begin, begin + size, size if counts else 0, repeats(size, layout)))
        begin += size
    return parts


def smallest_micro_batch(samples: int, layout: Layout) -> int:
    """Return the fewest samples that any process has in any micro-batch of an epoch; 0 where one has none.

    >>> smallest_micro_batch(257, Layout(processes=1, local_batch=64))  # the last steps are 33 and 32
    32
    >>> smallest_micro_batch(257, Layout(processes=1, local_batch=2))
    1
    """
    full, last = _full_and_last(samples, layout)
    sizes = {*last, *([layout.global_batch] if full else [])}
    owns = {own for size in sizes for own in (size // layout.processes, -(-size // layout.processes))}
    return min(own // -(-own // layout.local_batch) if own else 0 for own in owns)
