"""Energy, power and power limit of NVIDIA accelerators through the driver's own library, NVML.

The library comes with the driver, so no package is needed for it. Accelerators are found by their UUID: indices differ
between CUDA and NVML.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from tula_core.engine.power.sources import EnergySource

_LIBRARY = "libnvidia-ml.so.1"
_MILLI = 1e-3


class NvmlError(OSError):
    """NVML is not there or refused."""


class Nvml:
    """The functions of NVML that are needed; ``library`` is loaded where None.

    Raises
    ------
    NvmlError
        There is no library, or it cannot be initialised.
    """

    def __init__(self, library: Any = None) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY) if library is None else library
            self._call("nvmlInit_v2")
        except (OSError, AttributeError) as error:
            raise NvmlError(f"NVML is not available ({error})") from None

    def handle(self, uuid: str) -> ctypes.c_void_p:
        """Return the handle of the accelerator with a UUID such as ``GPU-...``."""
        found = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(found))
        return found

    def energy_j(self, handle: ctypes.c_void_p) -> float:
        """Return the joules since the driver was loaded; Volta and later."""
        value = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(value))
        return value.value * _MILLI

    def power_w(self, handle: ctypes.c_void_p) -> float:
        """Return the present watts."""
        return self._watts("nvmlDeviceGetPowerUsage", handle)

    def limit_w(self, handle: ctypes.c_void_p) -> float:
        """Return the power limit in force, in watts."""
        return self._watts("nvmlDeviceGetEnforcedPowerLimit", handle)

    def _watts(self, function: str, handle: ctypes.c_void_p) -> float:
        value = ctypes.c_uint()
        self._call(function, handle, ctypes.byref(value))
        return value.value * _MILLI

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError:  # of a driver older than the function
            raise NvmlError(f"this NVML has no {function}") from None
        if code:
            raise NvmlError(f"{function} answered {code}")


def nvml_sources(nvml: Nvml, uuids: Sequence[str]) -> tuple[list[EnergySource], str]:
    """Return the counter and the samples of power of all accelerators together, or why there is none."""
    count = f"{len(uuids)} accelerator{'s' * (len(uuids) != 1)}"
    try:
        handles = [nvml.handle(uuid) for uuid in uuids]
    except NvmlError as error:
        return [], f"the accelerators are unknown to NVML ({error})"
    offered = [
        EnergySource(
            name=f"the NVML energy counter of {count}",
            covers="accelerators",
            kind="counter",
            read=lambda: sum(nvml.energy_j(handle) for handle in handles),
        ),
        EnergySource(
            name=f"samples of the power of {count} by NVML",
            covers="accelerators",
            kind="power",
            read=lambda: sum(nvml.power_w(handle) for handle in handles),
        ),
    ]
    sources = [source for source in offered if _answers(source)]
    return sources, "" if sources else "NVML reads neither energy nor power of the accelerators"


def _answers(source: EnergySource) -> bool:
    try:
        source.read()
    except OSError:
        return False
    return True
