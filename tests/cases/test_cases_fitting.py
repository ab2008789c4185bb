"""Finding what fits: sizes are found by steps that really ran, in processes of their own, within a stated time.

Tools that look for the largest batch double it past the data set, count trials that trained nothing, or trust a first
step that needs less than the second; one process that runs out of memory leaves its peers waiting, or spoils every
trial after it. Here a size counts only after two optimizer steps and an evaluation, the sizes to try are known before
the first, their memory is forecast from the smaller ones, and a size that fails ends its processes on all ranks.
"""

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from case_helpers import attempt, case_plan, find_support
from case_workloads import CAPACITY, FREE_BYTES, HELD_BYTES, WIDE_FEATURES, WIDE_SAMPLES, broken_item, noted, plain
from factories import make_facts, make_job, make_profile

from tula_core import api, workloads
from tula_core.engine.failures import kind_of, read_failure
from tula_core.errors import InputError, OutOfMemoryError, RunError
from tula_core.job import Job
from tula_core.models.checking import check_profile
from tula_core.models.predictor import Predictor, fit
from tula_core.profiling import measure
from tula_core.profiling.worlds import ONE, local_batches
from tula_core.progress import silent
from tula_core.records import Candidate, MemoryUse, Profile
from tula_core.search.api import make_plan
from tula_core.training.run import run_attempt

GIB = 2**30
MOST_PROBES = 11


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A profile with what its passes noted, and how long it took."""

    job: Job
    profile: Profile
    passes: list[dict]
    seconds: float
    folder: Path

    def trained(self, launch: str | None = None) -> list[int]:
        return [p["size"] for p in self.passes if p["training"] and launch in (None, p["launch"])]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        find_support(patch, home)
        yield home


def measured(state: Path, workload: str, *, seconds: float, processes: int = 1) -> Measured:
    log = state / f"log-{workload}"
    log.mkdir()
    fields = {"workload": f"case_workloads:{workload}", "probe": {"seconds": seconds}}
    cluster = {"processes_per_node": processes, "threads_per_process": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CASES_LOG", str(log))
        began = time.monotonic()
        job, profile, _ = api.profile(Job.from_mapping({**fields, "cluster": cluster}))
        took = time.monotonic() - began
    check_profile(profile)
    passes = [entry for entry in noted(log) if "describe" not in str(entry["launch"])]
    return Measured(job=job, profile=profile, passes=passes, seconds=took, folder=state)


def sizes_that_fit(profile: Profile, processes: int) -> list[int]:
    return [use.local_batch for use in profile.memory if use.outcome == "ok" and use.processes_per_node == processes]


@pytest.fixture(scope="module")
def allocator(state: Path) -> Measured:
    """Case P04, P05, P14 and P17: the second step needs 30 % more, and nothing fits after a failure."""
    return measured(state, "fake_allocator", seconds=120)


@pytest.fixture(scope="module")
def one_rank(state: Path) -> Measured:
    """Case P09 and P10: 1,000 samples on two processes, rank 1 of which runs out of memory from 32 samples on."""
    return measured(state, "one_rank_runs_out", seconds=200, processes=2)


# P01


def test_the_search_never_goes_past_the_data_set_and_says_so(one_rank: Measured) -> None:
    """Elsewhere the doubling goes on to millions of samples on a data set of thousands."""
    sizes = sorted(set(one_rank.trained("1-1x1")))
    assert max(sizes) <= 1000 and len(sizes) <= MOST_PROBES
    plan = api.plan(one_rank.job, profile=one_rank.profile)
    assert max(row.candidate.global_batch for row in plan.table) <= 1000
    assert any("limited by the data set of 1000 training samples" in text for text in plan.assumptions)


@pytest.mark.parametrize("samples", [1, 7, 1000, WIDE_SAMPLES])
@pytest.mark.parametrize("reference", [1, 16, 4096])
def test_the_sizes_to_try_are_few_and_known_before_the_first(samples: int, reference: int) -> None:
    """Elsewhere minutes of doublings go by before the cap is noticed (P01, P03)."""
    job = make_job(recipe=make_job().recipe.model_copy(update={"batch_size": reference}))
    sizes = local_batches(job, make_facts(train_samples=samples), ONE)
    assert 1 <= len(sizes) <= MOST_PROBES and max(sizes) <= samples


# P02


def test_without_a_limit_of_the_users_the_free_memory_is_the_limit(state: Path) -> None:
    """Elsewhere nothing stops the doubling on a CPU before the machine's memory is full."""
    found = measured(state, "little_memory", seconds=100)
    tried = max(found.trained())
    assert tried >= 16 and tried * HELD_BYTES <= 0.8 * FREE_BYTES
    assert any("forecast exceeds the memory" in warning for warning in found.profile.warnings)
    assert {use.outcome for use in found.profile.memory} == {"ok"}


def test_the_first_size_of_all_is_not_tried_blindly(state: Path) -> None:
    """Elsewhere the first trial is as large as the recipe's batch would have it, whatever is free."""
    found = measured(state, "little_memory_large_batch", seconds=60)
    tried = max(found.trained())
    assert tried >= 8 and tried * HELD_BYTES <= 0.8 * FREE_BYTES
    assert any("forecast exceeds the memory" in warning for warning in found.profile.warnings)
    assert {use.outcome for use in found.profile.memory} == {"ok"} and found.profile.pilots
    plan = api.plan(found.job, profile=found.profile)
    assert plan.choice is not None and plan.choice.candidate.local_batch <= 0.8 * FREE_BYTES / HELD_BYTES


def test_a_size_that_ran_in_more_memory_than_it_may_use_does_not_fit() -> None:
    """Elsewhere what happened to run is a success, and the next run with a fuller machine dies of it."""
    profile, job = readings({4: 2.0, 8: 2.2, 16: 2.6}), make_job()
    rows = tuple(
        dataclasses.replace(use, outcome="over_limit" if use.local_batch == 16 else "ok") for use in profile.memory
    )
    profile = dataclasses.replace(profile, memory=rows)
    check_profile(profile)
    plan = make_plan(profile, job, fit(profile, job), mitigation=("linear-lr", "warmup"))
    refused = [row for row in plan.table if row.candidate.local_batch >= 16]
    assert refused and not any(row.feasible for row in refused)
    assert refused[0].infeasible_because == "local batch 16 needed more memory than may be used when it was measured"


# P03, P20


def test_a_slow_network_on_millions_of_rows_keeps_the_probe_to_its_time(state: Path) -> None:
    """Elsewhere profiling takes twelve minutes, or ten before the size of the data is noticed."""
    budget = 6.0
    found = measured(state, "wide_and_slow", seconds=budget)
    profile = found.profile
    assert profile.facts.train_samples == WIDE_SAMPLES and profile.facts.sample_shape == (WIDE_FEATURES,)
    # Where the machine takes the whole time to start a process, a first size is measured all the same.
    assert profile.probe.used_s <= max(1.2 * budget, profile.start_up[0].seconds + 15)
    assert profile.probe.stopped_because == "the budget of 6 s is used"
    assert len(profile.steps) == 1 and profile.steps[0].steps >= 1
    assert profile.steps[0].step_time_error_s > 0.05 * profile.steps[0].step_time_s
    whole = dataclasses.replace(profile, steps=make_profile().steps)
    wide, narrow = (spread(fit(taken, found.job), local_batch=64) for taken in (profile, whole))
    assert wide > narrow


def spread(predictor: Predictor, local_batch: int) -> float:
    """Return how wide the interval of a step's time is."""
    [row] = predictor.forecast([Candidate(nodes=1, processes_per_node=1, local_batch=local_batch)])
    found = row["step_time_s"]
    assert found.low and found.high
    return found.high / found.low


# P04


def test_a_size_counts_by_the_steps_that_really_ran(allocator: Measured) -> None:
    """Elsewhere trials after the first train no step at all, and so all succeed."""
    assert max(sizes_that_fit(allocator.profile, 1)) == 32
    for timing in allocator.profile.steps:
        assert 2 <= timing.steps <= allocator.trained().count(timing.local_batch)


@pytest.mark.parametrize("steps", [0, -1])
def test_a_timing_of_no_steps_is_refused(steps: int) -> None:
    """A trial without steps is invalid and no success."""
    profile = make_profile()
    rows = (dataclasses.replace(profile.steps[0], steps=steps), *profile.steps[1:])
    with pytest.raises(InputError, match=r"profile\.steps\[0\]\.steps"):
        fit(dataclasses.replace(profile, steps=rows), make_job())


# P05, P17


def test_what_was_found_to_fit_fits_in_the_run_and_its_evaluation(allocator: Measured) -> None:
    """Elsewhere the size found dies in the second step, or in an evaluation that kept a larger batch."""
    largest = max(sizes_that_fit(allocator.profile, 1))
    assert largest * 1.3 <= CAPACITY < 2 * largest * 1.3  # 64 passes its first step alone
    said: list[str] = []
    plan = case_plan("fake_allocator", (1, largest, 1), optimizer="adam", learning_rate=0.01)
    log = allocator.folder / "log-run"
    log.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CASES_LOG", str(log))
        outcome, error = run_attempt(
            attempt(plan, allocator.folder / "run"), lambda event: said.append(event.message), lambda at, figures: None
        )
    assert error is None and outcome.status == "FINISHED"
    assert "an evaluation batch of 256 did not fit in memory: 32 is used from now on" in said
    evaluated = [entry["size"] for entry in noted(log) if not entry["training"]]
    assert evaluated[:3] == [256, 128, 64] and evaluated[-16:] == [32] * 15 + [500 - 15 * 32]
    assert len(outcome.curve) == 2 and all(point.metric > 0.5 for point in outcome.curve)


# P09, P10


def test_both_ranks_try_the_same_sizes_and_leave_nothing_behind(one_rank: Measured) -> None:
    """Elsewhere each rank finds its own size, or deletes the file of the other."""
    last = max(entry["launch"] for entry in one_rank.passes if entry["launch"].endswith("1x2"))
    passes = [entry for entry in one_rank.passes if entry["launch"] == last]
    ranks = [[(entry["training"], entry["size"]) for entry in passes if entry["rank"] == rank] for rank in (0, 1)]
    assert ranks[0] == ranks[1] and ranks[0]
    left = {path.name.split("-")[-1] for path in (one_rank.folder / "tmp").iterdir()}
    assert left <= {"machine.lock"}


def test_one_rank_out_of_memory_shrinks_both_at_once(one_rank: Measured) -> None:
    """Elsewhere one rank runs out of memory and the others wait for ever."""
    assert sizes_that_fit(one_rank.profile, 2) == [8, 16]
    [failed] = [use for use in one_rank.profile.memory if use.outcome != "ok"]
    assert (failed.processes_per_node, failed.local_batch, failed.outcome) == (2, 32, "out_of_memory")
    assert one_rank.seconds < 280  # a rank that waits for its peer waits ten minutes


def test_one_rank_out_of_memory_ends_a_run_on_all(state: Path, tmp_path: Path) -> None:
    """The same in training: the run fails, with memory as the cause, and nobody waits."""
    began = time.monotonic()
    outcome, error = run_attempt(
        attempt(case_plan("one_rank_runs_out", (2, 32, 1)), tmp_path), silent, lambda samples, figures: None
    )
    assert isinstance(error, OutOfMemoryError) and outcome.status == "FAILED"
    assert time.monotonic() - began < 240  # one start of two processes and a step


# P12

MEMORY_TEXTS = [
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
    "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
    "Unable to find a valid cuDNN algorithm to run convolution",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "DataLoader worker (pid 12) is killed by signal: Killed. ",
    "MPS backend out of memory (MPS allocated: 8 GB)",
    'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1, please report a bug',
    'NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":1123',
    "FIND was unable to find an engine to execute this computation",
    "GET was unable to find an engine to execute this computation",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
]


def wrapped(cause: BaseException) -> Exception:
    error = RuntimeError("the forward pass failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        *map(RuntimeError, MEMORY_TEXTS),
        wrapped(MemoryError()),
    ],
    ids=lambda error: type(error).__name__ + str(error)[:20],
)
def test_memory_that_runs_out_is_known_in_every_form(error: Exception) -> None:
    """Elsewhere it comes as the text of a library and is taken for a fault of the program."""
    assert kind_of(error) == "out_of_memory"


@pytest.mark.parametrize("code", [137, -9])
def test_a_child_that_the_system_killed_is_taken_for_one_that_did_not_fit(tmp_path: Path, code: int) -> None:
    """The system ends a process that wants too much memory with signal 9 and no word."""
    failure = read_failure(tmp_path, {0: code})
    assert failure is not None and failure.kind == "killed" and "memory" in failure.message


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (64x7 and 6x16)"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasSgemm( handle, opa, opb)`"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb)`"),
        ValueError("out of memory is the name of this column"),
        wrapped(KeyError("no label")),
    ],
)
def test_an_error_that_only_mentions_memory_is_none(error: Exception) -> None:
    """A wrong shape must not be answered by a smaller batch."""
    assert kind_of(error) == "error"


# P13


def test_an_item_that_cannot_be_read_is_told_as_itself_with_the_size_tried(state: Path, tmp_path: Path) -> None:
    """Elsewhere every size fails, and after hours of halving the report is that none fits."""
    job = Job(workload="case_workloads:broken_item", probe={"seconds": 10}).resolved(broken_item().recipe, None)
    facts, hardware = make_facts(train_samples=64, has_batch_norm=False), make_profile().hardware
    with pytest.raises(RunError, match=r"no label for image 5.png.*local batch of \d+ on 1 process") as caught:
        measure(job, facts, hardware, folder=tmp_path)
    assert not isinstance(caught.value, OutOfMemoryError)
    assert len(list(tmp_path.iterdir())) == 1  # one launch: nothing was halved


def test_a_bad_label_is_found_before_anything_is_measured() -> None:
    """Where the labels are at hand all of them are looked at first."""
    made = plain()
    made.train_set().tensors[1][137] = 9  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="item 137 has the label 9"):
        workloads.validate(made)


# P14


def test_a_size_that_failed_does_not_spoil_the_smaller_ones(allocator: Measured) -> None:
    """Elsewhere the memory of a failed trial is never given back, and every later one fails too."""
    launches = [entry["launch"] for entry in allocator.passes if entry["training"]]
    assert len(set(launches)) == 2
    after = {entry["size"] for entry in allocator.passes if entry["launch"] == max(launches) and entry["training"]}
    assert {4, 8, 16, 32} <= after and 64 not in after
    assert len(allocator.profile.pilots) == 2 and not any(pilot.diverged for pilot in allocator.profile.pilots)


# P15

READINGS = {1: 2.816, 2: 2.852, 4: 2.842, 8: 2.772, 16: 2.741}  # GiB, falling


def readings(peaks: dict[int, float]) -> Profile:
    rows = tuple(
        MemoryUse(nodes=1, processes_per_node=1, local_batch=size, peak_bytes=round(GIB * peak), outcome="ok")
        for size, peak in peaks.items()
    )
    hardware = dataclasses.replace(make_profile().hardware, memory_bytes=round(5.24 * GIB))
    return make_profile(memory=rows, hardware=hardware)


@pytest.mark.parametrize("peaks", [READINGS, dict.fromkeys(READINGS, 2.8), {1: 2.9, 16: 2.7}])
def test_readings_that_do_not_grow_are_not_extrapolated(peaks: dict[int, float]) -> None:
    """Elsewhere a falling line is followed to a batch of 253,731."""
    profile, job = readings(peaks), make_job()
    predictor = fit(profile, job)
    assert predictor.max_local_batch(1, 1, round(5.24 * GIB)) == 16
    assert any("nothing is extrapolated beyond the largest measured, 16" in text for text in predictor.assumptions)
    plan = make_plan(profile, job, predictor, mitigation=("linear-lr", "warmup"))
    assert all(row.candidate.local_batch <= 16 for row in plan.table if row.feasible)
