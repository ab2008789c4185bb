"""A device that works behind the host's back, on a clock of its own, so that no test depends on the machine's speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


class VirtualDevice:
    """Work is handed over at once and done later; only synchronising, or an event, sees when it is done."""

    def __init__(self) -> None:
        self.host_s = 0.0
        self.busy_until_s = 0.0

    def launch(self, seconds: float) -> None:
        self.host_s += 1e-5
        self.busy_until_s = max(self.host_s, self.busy_until_s) + seconds

    def synchronise(self) -> None:
        self.host_s = max(self.host_s, self.busy_until_s)

    @property
    def clock(self) -> SimpleNamespace:
        """What stands in for the module ``time``."""
        return SimpleNamespace(perf_counter=lambda: self.host_s, monotonic=lambda: self.host_s)

    def event(self, **options: Any) -> Any:
        device = self

        class Event:
            def record(self) -> None:
                self.at_s = max(device.host_s, device.busy_until_s)

            def elapsed_time(self, other: Any) -> float:
                return 1e3 * (other.at_s - self.at_s)

        return Event()

    def context(self, kind: str, others_s: Callable[[Sequence[float]], list[float]] = list) -> SimpleNamespace:
        """Return a worker's context on this device; ``others_s`` is what the maximum over all ranks makes of values."""
        return SimpleNamespace(
            device=SimpleNamespace(type=kind),
            synchronise=self.synchronise,
            barrier=lambda: None,
            all_reduce_max=others_s,
            nodes=1,
            processes_per_node=1,
            processes=1,
        )
