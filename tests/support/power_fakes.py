"""Meters that say what a test wants, and a context of one process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from tula_core.engine.power.sources import Covers, EnergySource


def source(name: str, kind: Any, values: Sequence[float], covers: Covers = "accelerators") -> EnergySource:
    """Reads ``values`` in turn, then the last one for ever; an exception among them is raised."""
    left: Iterator[float] = iter(values)
    last = [values[-1]]

    def read() -> float:
        value = next(left, last[0])
        if isinstance(value, Exception):
            raise value
        return value

    return EnergySource(name=name, covers=covers, kind=kind, read=read)


class FakeContext:
    """A worker's context of one process that keeps what is emitted."""

    def __init__(self, processes_per_node: int = 1) -> None:
        self.rank, self.nodes = 0, 1
        self.processes = self.processes_per_node = processes_per_node
        self.device = torch.device("cpu")
        self.events: list[tuple[str, dict[str, Any]]] = []

    def emit(self, kind: str, **data: Any) -> None:
        self.events.append((kind, data))

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def all_reduce_max(self, values: Sequence[float]) -> list[float]:
        return list(values)


class FakeNvml:
    """The C functions of NVML for accelerators with given joules and watts, by UUID; None answers an error."""

    def __init__(self, devices: dict[str, tuple[float | None, float | None]], limit_w: float = 300.0) -> None:
        self._uuids = list(devices)
        self._devices, self._limit_w = devices, limit_w

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, found: Any) -> int:  # noqa: N802
        if uuid.decode() not in self._devices:
            return 6
        found._obj.value = self._uuids.index(uuid.decode()) + 1
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: ctypes.c_void_p, value: Any) -> int:  # noqa: N802
        return self._answer(self._devices[self._uuids[(handle.value or 0) - 1]][0], value)

    def nvmlDeviceGetPowerUsage(self, handle: ctypes.c_void_p, value: Any) -> int:  # noqa: N802
        return self._answer(self._devices[self._uuids[(handle.value or 0) - 1]][1], value)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: ctypes.c_void_p, value: Any) -> int:  # noqa: N802
        return self._answer(self._limit_w, value)

    def _answer(self, number: float | None, value: Any) -> int:
        if number is None:
            return 3
        value._obj.value = round(number * 1000)
        return 0


def packages(root: Path, *joules: float, range_j: float = 1000.0) -> Callable[[int, float], None]:
    """Write a powercap folder with packages, their parts and a platform; the function given sets a counter."""
    for number, value in enumerate(joules):
        for name, label in ((f"intel-rapl:{number}", f"package-{number}"), (f"intel-rapl:{number}:0", "core")):
            folder = root / name
            folder.mkdir(parents=True)
            (folder / "name").write_text(label + "\n")
            (folder / "energy_uj").write_text(f"{value * 1e6:.0f}\n")
            (folder / "max_energy_range_uj").write_text(f"{range_j * 1e6:.0f}\n")
    platform = root / f"intel-rapl:{len(joules)}"
    platform.mkdir(parents=True)
    (platform / "name").write_text("psys\n")
    (platform / "energy_uj").write_text("9999999999\n")

    def set_to(number: int, value: float) -> None:
        (root / f"intel-rapl:{number}" / "energy_uj").write_text(f"{value * 1e6:.0f}\n")

    return set_to
