"""Memory in a probe: what runs out in a pilot is the pilot's, and a size that fitted is not said to have failed.

Elsewhere a trial that comes after the sizes were found runs beside the network that found them, needs twice the memory
of a run, and its failure is blamed on the batch size. Here a pilot is alone on its device, and fails alone.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from case_helpers import find_support
from case_workloads import NETWORK_UNITS, UNITS

from tula_core import api
from tula_core.job import Job
from tula_core.records import Profile


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        find_support(patch, home)
        yield home


def measured(workload: str, *, seconds: float, processes: int = 1, **fields: object) -> tuple[Job, Profile]:
    job = Job.from_mapping(
        {
            "workload": f"case_workloads:{workload}",
            "probe": {"seconds": seconds},
            "cluster": {"processes_per_node": processes, "threads_per_process": 1},
            **fields,
        }
    )
    job, profile, _ = api.profile(job)
    return job, profile


def test_a_pilot_is_alone_with_its_memory(state: Path) -> None:
    """Elsewhere a second network beside the sweep's runs out of memory, and the largest size that fits is refused."""
    job, profile = measured("stateful", seconds=120)
    assert [use.local_batch for use in profile.memory if use.outcome == "ok"] == [4, 8, 16, 32, 64]
    assert [use.local_batch for use in profile.memory if use.outcome != "ok"] == [128]
    assert NETWORK_UNITS + 64 <= UNITS < 2 * NETWORK_UNITS + 64
    assert [pilot.global_batch for pilot in profile.pilots] == [16, 128] and profile.noise is not None
    plan = api.plan(job, profile=profile)
    assert any(row.feasible and row.candidate.local_batch == 64 for row in plan.table)


@pytest.mark.parametrize("processes", [1, 2])
def test_memory_that_runs_out_in_a_pilot_is_the_pilots(state: Path, processes: int) -> None:
    """Elsewhere the largest size that ran is recorded as the one that did not fit."""
    limits = {"max_local_batch": 32}
    _, profile = measured("pilots_run_out", seconds=60, processes=processes, constraints=limits)
    assert {use.outcome for use in profile.memory} == {"ok"}
    assert {step.processes_per_node for step in profile.steps} == set(range(1, processes + 1))
    failed = [text for text in profile.warnings if "ran out of memory" in text]
    assert failed and all(text.startswith("the pilot at a global batch of") for text in failed)
