import os

import psutil
import pytest

from tula_core.engine import hardware
from tula_core.job import Cluster


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """A folder that stands for this process's cgroup; the machine has 8 cores and 64 GiB."""
    monkeypatch.setattr(hardware, "_cgroup_folders", lambda controller: [tmp_path])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    memory = psutil.virtual_memory()._replace(total=64 * 2**30, available=60 * 2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)

    def write(**files):
        for name, text in files.items():
            (tmp_path / name.replace("__", ".")).write_text(f"{text}\n")

    return write


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu__max": "max 100000"}, 8),
        ({"cpu__max": "250000 100000"}, 2),
        ({"cpu__max": "50000 100000"}, 1),
        ({"cpu__cfs_quota_us": "400000", "cpu__cfs_period_us": "100000"}, 4),
        ({"cpu__cfs_quota_us": "-1", "cpu__cfs_period_us": "100000"}, 8),
    ],
)
def test_cores_are_cut_to_the_quota(cgroup, files, cores):
    cgroup(**files)
    assert hardware.available_cores() == cores


@pytest.mark.parametrize(
    ("files", "usable", "free"),
    [
        ({}, 64 * 2**30, 60 * 2**30),
        ({"memory__max": "max", "memory__current": "5"}, 64 * 2**30, 60 * 2**30),
        ({"memory__max": str(4 * 2**30), "memory__current": str(2**30)}, 4 * 2**30, 3 * 2**30),
        ({"memory__limit_in_bytes": str(2**63 - 4096), "memory__usage_in_bytes": "5"}, 64 * 2**30, 60 * 2**30),
        ({"memory__limit_in_bytes": str(2**31), "memory__usage_in_bytes": str(2**30)}, 2**31, 2**30),
    ],
)
def test_memory_is_cut_to_the_cgroup(cgroup, files, usable, free):
    cgroup(**files)
    assert hardware.usable_memory_bytes() == usable
    assert hardware.free_memory_bytes() == free


@pytest.mark.parametrize(("processes", "threads"), [(1, 8), (2, 4), (3, 2), (16, 1)])
def test_processes_share_the_cores(processes, threads):
    assert hardware.threads_per_process(Cluster(processes_per_node=processes), 8) == threads
    assert hardware.threads_per_process(Cluster(processes_per_node=processes, threads_per_process=5), 8) == 5


def test_facts_of_this_machine_are_whole_and_repeatable():
    first, second = (hardware.inspect_hardware(Cluster()) for _ in range(2))
    assert first == second
    assert first.cores >= 1 and first.devices >= 1 and first.memory_bytes > 2**20
    assert {"python", "torch", "numpy", "tula"} <= set(first.versions)
    assert len(first.fingerprint) == 16
