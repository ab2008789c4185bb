"""Peak memory of this process: what the device's allocator reserved, or the resident set on a CPU machine."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from pathlib import Path

import torch


def reset_peak(device: torch.device) -> None:
    """Begin a new peak; where the system cannot (outside Linux), the peak since the process began goes on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):  # 5 resets the high-water mark, see proc(5)
            Path("/proc/self/clear_refs").write_text("5")


def release_unused(device: torch.device) -> None:
    """Give back what an allocator keeps of freed memory, so that a peak is that of what follows."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library has no such function
            ctypes.CDLL(None).malloc_trim(0)


def peak_bytes(device: torch.device) -> int:
    """Return the peak since `reset_peak` in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
