"""What the machine has and what of it may be used: affinity, cgroup limits, devices, versions."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from tula_core.job import Cluster
from tula_core.records import Hardware
from tula_core.version import __version__

_PACKAGES = ("torch", "torchvision", "numpy")
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED_BYTES = 2**60  # the first cgroup version writes a number near 2^63 for no limit


def available_cores() -> int:
    """Return the cores this process may use: its affinity, cut to the cgroup's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in _cgroup_folders("cpu") if (quota := _cpu_quota(folder)) is not None]
    return max(1, min(cores, *(math.floor(quota) for quota in quotas)) if quotas else cores)


def usable_memory_bytes() -> int:
    """Return the host memory that may be used at all, cgroup limits included."""
    limits = [limit for folder in _cgroup_folders("memory") if (limit := _memory_limit(folder)) is not None]
    return int(min([psutil.virtual_memory().total, *limits]))


def free_memory_bytes() -> int:
    """Return the host memory that is free now, under the tightest cgroup limit."""
    free = [psutil.virtual_memory().available]
    for folder in _cgroup_folders("memory"):
        limit = _memory_limit(folder)
        used = _first_number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            free.append(max(0, limit - int(used)))
    return int(min(free))


def threads_per_process(cluster: Cluster, cores: int) -> int:
    """Return the intra-op threads of each process: the job's, else an equal share of this machine's cores."""
    return cluster.threads_per_process or max(1, cores // cluster.processes_per_node)


def inspect_hardware(cluster: Cluster) -> Hardware:
    """Return the machine's facts; imports torch, so call it in a worker."""
    import torch

    cores = available_cores()
    accelerators = torch.cuda.device_count() if torch.cuda.is_available() else 0
    processor = processor_name()
    # A worker falls back to the CPU where there are fewer accelerators than processes on the machine.
    cuda = accelerators > 0
    names = dict.fromkeys(torch.cuda.get_device_name(index) for index in range(accelerators))
    # Of unlike accelerators the smallest decides what fits, and none may stand for the others.
    sizes = [torch.cuda.get_device_properties(index).total_memory for index in range(accelerators)]
    return with_fingerprint(
        Hardware(
            fingerprint="",
            device="cuda" if cuda else "cpu",
            device_name=" + ".join(names) if cuda else processor,
            devices=accelerators if cuda else cores,
            cores=cores,
            memory_bytes=usable_memory_bytes(),
            device_memory_bytes=min(sizes) if cuda else None,
            threads_per_process=threads_per_process(cluster, cores),
            versions=versions(),
        ),
        processor,
    )


def with_fingerprint(hardware: Hardware, processor: str) -> Hardware:
    """Return ``hardware`` with sixteen hex digits over all that matters to timing.

    Memory enters in whole GiB: the kernel's own share differs from boot to boot.
    """
    matters = {
        "device": hardware.device,
        "device_name": hardware.device_name,
        "devices": hardware.devices,
        "cores": hardware.cores,
        "memory_gib": round(hardware.memory_bytes / 2**30),
        "device_memory_gib": round((hardware.device_memory_bytes or 0) / 2**30),
        "threads_per_process": hardware.threads_per_process,
        "torch": hardware.versions.get("torch"),
        "processor": processor,
    }
    digest = hashlib.sha256(json.dumps(matters, sort_keys=True).encode()).hexdigest()[:16]
    return dataclasses.replace(hardware, fingerprint=digest)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that timing depends on."""
    found = {"python": platform.python_version(), "tula": __version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def processor_name() -> str:
    """Return the name of the processor's model, or its architecture where the system does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or sys.platform


def _cgroup_folders(controller: str) -> Iterator[Path]:
    """Yield this process's cgroup and those above it, of either version of the interface."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            root = _CGROUPS
        elif controller in controllers.split(","):
            root = _CGROUPS / controllers
            root = root if root.exists() else _CGROUPS / controller
        else:
            continue
        place = root / path.lstrip("/")
        # Inside a container the path named may not exist, and the limit is at the root.
        for folder in (place, *place.parents):
            if folder.is_dir():
                yield folder
            if folder == root:
                break


def _cpu_quota(folder: Path) -> float | None:
    text = _text(folder / "cpu.max")
    if text is not None:
        quota, period = text.split()
        return None if quota == "max" else float(quota) / float(period)
    quota_us = _first_number(folder, "cpu.cfs_quota_us")
    period_us = _first_number(folder, "cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us and quota_us > 0 else None


def _memory_limit(folder: Path) -> int | None:
    limit = _first_number(folder, "memory.max", "memory.limit_in_bytes")
    return int(limit) if limit is not None and limit < _UNLIMITED_BYTES else None


def _first_number(folder: Path, *names: str) -> float | None:
    for name in names:
        text = _text(folder / name)
        if text is not None and text != "max":
            return float(text)
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
