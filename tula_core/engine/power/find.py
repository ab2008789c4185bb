"""Finding the meters of this machine, and the power limit of its accelerators."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tula_core.engine.power.meter import PowerMeter
from tula_core.engine.power.nvml import Nvml, NvmlError, nvml_sources
from tula_core.engine.power.rapl import POWERCAP, rapl_source

if TYPE_CHECKING:
    from tula_core.engine.context import WorkerContext


def machine_meter(
    uuids: Sequence[str] | None,
    *,
    visible: str | None = None,
    nvml: Nvml | None = None,
    powercap: Path = POWERCAP,
) -> PowerMeter:
    """Return the meter of this machine; one without sources, and a note why, where its energy cannot be read.

    Where accelerators train but cannot be metered there is no energy at all: that of the processors alone would be
    taken for the whole.

    Parameters
    ----------
    uuids
        Of the accelerators in use, None on a CPU machine.
    visible
        ``CUDA_VISIBLE_DEVICES``.
    nvml
        The driver's library; loaded where None.
    """
    processors, why_not = rapl_source(powercap)
    if uuids is None:
        return PowerMeter([] if processors is None else [processors], why_not)
    if is_slice(visible, uuids):
        return PowerMeter([], "energy is unavailable: a slice of an accelerator (MIG) has no meter of its own")
    try:
        sources, fault = nvml_sources(Nvml() if nvml is None else nvml, uuids)
    except NvmlError as error:
        return PowerMeter([], f"energy is unavailable: {error}")
    if not sources:
        return PowerMeter([], f"energy is unavailable: {fault}")
    return PowerMeter([*sources, *([] if processors is None else [processors])], why_not)


def is_slice(visible: str | None, uuids: Sequence[str]) -> bool:
    """Return whether what is visible are slices of accelerators.

    >>> is_slice("MIG-5c89852c-d268-57ef-83ee-4a0ef7b8b0ab", []), is_slice("0,1", []), is_slice("GPU-8932f937", [])
    (True, False, False)
    """
    named = [part.strip().upper() for part in (visible or "").split(",")] + [uuid.upper() for uuid in uuids]
    return any(name.startswith("MIG") for name in named)


def worker_meter(context: WorkerContext) -> PowerMeter:
    """Return the meter of a worker's machine; only the first process of each machine reads, the others know nothing."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return PowerMeter([])
    return machine_meter(_uuids(context), visible=os.environ.get("CUDA_VISIBLE_DEVICES"))


def present_limit_w(context: WorkerContext) -> float | None:
    """Return the power limit in force on this worker's accelerator; None where there is none or it cannot be read."""
    if context.device.type != "cuda" or is_slice(os.environ.get("CUDA_VISIBLE_DEVICES"), []):
        return None
    try:
        nvml = Nvml()
        return nvml.limit_w(nvml.handle(_uuid(context.device.index or 0)))
    except OSError:
        return None


def _uuids(context: WorkerContext) -> list[str] | None:
    if context.device.type != "cuda":
        return None
    return [_uuid(index) for index in range(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))]


def _uuid(index: int) -> str:
    import torch

    found = str(torch.cuda.get_device_properties(index).uuid)
    return found if found.upper().startswith(("GPU", "MIG")) else f"GPU-{found}"
