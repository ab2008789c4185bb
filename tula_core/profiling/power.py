"""Power while the sweep times steps: one record for each local batch whose windows are long enough to be read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from tula_core.engine.context import WorkerContext
from tula_core.engine.power.find import present_limit_w
from tula_core.engine.power.meter import Energy, Mark
from tula_core.engine.power.windows import RunMeter
from tula_core.records.power import PowerUse

SHORTEST_S = 0.5
"""Counters are updated every 20 to 100 ms: a shorter window would be mostly their error."""


class PowerLog:
    """Meters the blocks of a sweep; every process of the world takes part."""

    def __init__(self, context: WorkerContext, meter: RunMeter | None = None) -> None:
        self._context = context
        self._meter = RunMeter(context) if meter is None else meter
        self._began: Mark = self._meter.mark()
        self._windows: dict[int, list[Energy]] = {}

    @contextlib.contextmanager
    def window(self, local_batch: int) -> Iterator[None]:
        """Meter what happens inside as steps of ``local_batch``."""
        if not self._meter.available:
            yield
            return
        begin = self._meter.mark()
        yield
        self._windows.setdefault(local_batch, []).append(self._meter.since(begin))

    def report(self) -> None:
        """Emit what was read, a record a configuration, or why nothing was; stop reading.

        Where every window is too short, the mean over all of the sweep stands for its middle size.
        """
        whole = self._meter.since(self._began)
        self._meter.close()
        limit_w = present_limit_w(self._context)
        found = [
            use
            for size, windows in self._windows.items()
            if (use := self._use(size, [window for window in windows if window.seconds >= SHORTEST_S], limit_w))
        ]
        if not found and self._windows and whole.seconds >= SHORTEST_S:
            sizes = sorted(self._windows)
            middle = self._use(sizes[len(sizes) // 2], [whole], limit_w)
            found = [] if middle is None else [middle]
        for use in found:
            self._context.emit("power", **asdict(use))
        if not found and self._meter.note:
            self._context.emit("no_power", reason=self._meter.note, device=self._context.device.type)
        elif (fault := whole.disagreement) is not None:
            self._context.emit("power_disagreement", text=fault)

    def _use(self, local_batch: int, windows: Sequence[Energy], limit_w: float | None) -> PowerUse | None:
        totals = [window.total_j for window in windows if window.total_j is not None]
        seconds = sum(window.seconds for window in windows)
        if not windows or len(totals) < len(windows) or sum(totals) <= 0:
            return None
        nodes, processes = self._context.nodes, self._context.processes

        def mean_w(name: str, share: int) -> float | None:
            joules = [getattr(window, name) for window in windows]
            return None if None in joules else sum(joules) / seconds / share

        return PowerUse(
            nodes=nodes,
            processes_per_node=self._context.processes_per_node,
            local_batch=local_batch,
            seconds=seconds,
            node_w=sum(totals) / seconds / nodes,
            source=windows[-1].source,
            accelerator_w=mean_w("accelerators_j", processes) or None,
            limit_w=limit_w,
            counter_w=mean_w("counter_j", processes),
            integrated_w=mean_w("integrated_j", processes),
        )
