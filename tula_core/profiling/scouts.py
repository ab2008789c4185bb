"""Scouts: two steps of sizes below the first that is to be tried, so that this one is not tried blindly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tula_core.engine.peak_memory import peak_bytes, release_unused, reset_peak
from tula_core.profiling.rig import Rig, StepFeed
from tula_core.profiling.statistics import forecast_peak
from tula_core.profiling.timing import plain_steps

FIRST_LOOK_SHARE = 0.4  # of the time may go into looks at sizes
LOOK_STEPS = 8  # of a size, about
_STRIDE = 2  # of the halvings: each scout is four times as large as the one before
_PAIR_SHARE = 0.7  # of the time may go into looks at two sizes, where the second has to be looked at in any case


@dataclass(slots=True)
class Scouts:
    """What the scouts found: (local batch, peak bytes of the fullest process), and the seconds of their steps."""

    peaks: list[tuple[int, int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def excess_s(self, steady_s: float) -> float:
        """Return what their steps took beyond steady ones: a process's very first steps are among them."""
        return math.fsum(max(0.0, seconds - steady_s) for seconds in self.seconds)


def send_scouts(rig: Rig, smaller: Sequence[int], first: int) -> Scouts:
    """Take steps of sizes ascending from the smallest, until ``first`` surely fits or the next might not.

    Parameters
    ----------
    smaller
        Halvings of ``first``, ascending.
    """
    found = Scouts()
    for size in smaller[::_STRIDE]:
        if found.peaks and not fits(rig, found.peaks, size):
            break
        rig.context.emit("trying", local_batch=size)
        release_unused(rig.context.device)
        reset_peak(rig.context.device)
        feed = StepFeed(rig, rig.layout(size))
        found.seconds += plain_steps(rig, feed, 2)  # the second holds the optimizer's state as well
        feed.pause()
        found.peaks.append((size, int(rig.context.all_reduce_max([float(peak_bytes(rig.context.device))])[0])))
        if fits(rig, found.peaks, first):
            break
    return found


def sizes_after(rig: Rig, scouts: Scouts, smaller: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the sizes to try: those asked for, after smaller ones where the first of them might not fit."""
    if not scouts.peaks or fits(rig, scouts.peaks, sizes[0]):
        return list(sizes)
    return [*(size for size in smaller if size >= scouts.peaks[-1][0]), *sizes]


def with_quarter(sizes: Sequence[int], smaller: Sequence[int], scouts: Scouts, seconds: float) -> list[int]:
    """Return the sizes, after a quarter of the first where there is time for a look at that but not at the second.

    One size alone does not tell what of a step every sample takes and what each step takes whatever its size.

    Parameters
    ----------
    smaller
        Halvings of the first size, ascending.
    seconds
        All the time there is.
    """
    below = [size for size in smaller if size <= sizes[0] / 4]
    if len(sizes) == 1 or not (below and scouts.seconds):
        return list(sizes)
    # As a small batch's sample takes no less time than a large one's, a step of the first size takes no longer.
    first_s = scouts.seconds[-1] * sizes[0] / scouts.peaks[-1][0]
    with_second, with_below = (1 + size / sizes[0] for size in (sizes[1], below[-1]))
    crowded = LOOK_STEPS * first_s * with_second > FIRST_LOOK_SHARE * seconds
    return (
        [below[-1], *sizes] if crowded and LOOK_STEPS * first_s * with_below <= _PAIR_SHARE * seconds else list(sizes)
    )


def fits(rig: Rig, peaks: Sequence[tuple[int, int]], size: int) -> bool:
    """Return whether a size was seen to need, or is forecast to need, no more memory than may be used."""
    return size <= peaks[-1][0] or forecast_peak(peaks, rig.base_bytes, size) <= rig.memory_limit_bytes
