"""`PowerUse`: what one node drew while it trained, and which meter says so."""

from __future__ import annotations

from dataclasses import dataclass

MOST_DISAGREEMENT = 0.10
"""Two meters of the same device that differ by more than this share are said to disagree."""

STILL_SHARE = 0.1
"""A counter that says less than this share of what samples of power say stands still: no meter is so far off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerUse:
    """Mean power of one node at one configuration.

    Attributes
    ----------
    seconds
        How long was metered, all windows together.
    node_w
        What the meters of one node say together; what they do not cover is not in it.
    source
        The meters, in words.
    accelerator_w
        Of one accelerator alone; None where there is none or none is metered.
    limit_w
        Power limit of one accelerator while it was metered; None where it cannot be read.
    counter_w, integrated_w
        The same accelerator by its energy counter and by samples of its power; None where one was not read.
    """

    nodes: int
    processes_per_node: int
    local_batch: int
    seconds: float
    node_w: float
    source: str
    accelerator_w: float | None = None
    limit_w: float | None = None
    counter_w: float | None = None
    integrated_w: float | None = None

    @property
    def disagreement(self) -> float | None:
        """Share by which samples of power differ from the counter, None where one of the two was not read.

        Of a counter that stands still the whole of the samples.
        """
        if self.counter_w is None or self.integrated_w is None:
            return None
        if self.counter_w <= 0:
            return 1.0 if self.integrated_w > 0 else None
        return abs(self.integrated_w / self.counter_w - 1)
