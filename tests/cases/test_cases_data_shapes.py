"""Data shapes: lengths that are missing or wrong, batches that do not divide, runs that go on, data that changed.

Elsewhere a stream without a length ends in a type error, one that each loader worker reads in full is trained on twice,
a length of one makes a plan of one step, a batch above the data set costs nothing in no time, a resumed run repeats or
skips samples, and a cached result outlives its data. Here a data set has a length that is true or is asked for, every
sample is used once per epoch whatever the layout and wherever a run stopped, and all that a measurement depends on is
in the key it is kept under.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from case_helpers import find_support, in_world
from case_workloads import Numbered, noted, workload
from factories import make_facts, make_job, make_profile, make_step
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_workloads import blobs
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tula_core import workloads
from tula_core.engine.batches import BatchStream, step_sizes
from tula_core.engine.context import WorkerContext
from tula_core.engine.shares import Layout
from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.models.predictor import fit
from tula_core.profiling import fingerprint
from tula_core.profiling.cache import cached_profile, keep_profile
from tula_core.records import Plan, Row
from tula_core.search.api import make_plan
from tula_core.training.worker import Run
from tula_core.workloads import Workload
from tula_core.workloads.describe import describe

JOB = Job(workload="case_workloads:plain")


class Stream(IterableDataset):
    """Pairs, one after the other, with a stated length or none."""

    def __init__(self, items: int, states: int | None = None) -> None:
        self.data = blobs(items, 1)
        if states is not None:
            self.__class__ = StreamWithLength
            self.states = states

    def __iter__(self) -> Iterator[Any]:
        return (self.data[index] for index in range(len(self.data)))


class StreamWithLength(Stream):
    def __len__(self) -> int:
        return self.states


def with_data(data: Any, **changes: Any) -> Workload:
    return dataclasses.replace(workload(), train_data=data, **changes)


def trained_on(data: Any, samples: int, workers: int, processes: int = 1) -> list[float]:
    """Return the first features that one epoch of all processes hands out, sorted."""
    seen: list[float] = []
    for rank in range(processes):
        layout = Layout(processes=processes, local_batch=8)
        stream = BatchStream(data, samples=samples, layout=layout, rank=rank, seed=0, workers=workers)
        for step in stream.from_samples(0):
            seen += [value for inputs, _ in step.micro_batches for value in inputs[:, 0].tolist()]
            if step.ends_epoch:
                break
    return sorted(seen)


# P11


def ready_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [tuple(tensor[start : start + 32] for tensor in blobs(320, 1).tensors) for start in range(0, 320, 32)]  # type: ignore[misc]


@pytest.mark.parametrize("as_function", [False, True])
def test_a_loader_with_a_size_of_its_own_is_refused(as_function: bool) -> None:
    """Elsewhere the size is changed where nobody reads it, and every batch has 32 samples still."""
    loader = DataLoader(blobs(320, 1), batch_size=32)
    made = with_data((lambda: loader) if as_function else loader)
    with pytest.raises(InputError, match=r"train_data: it is a DataLoader, which hands out batches of 32 .*\.dataset"):
        made.train_set()


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_batches_instead_of_items_do_not_pass(kind: str) -> None:
    """A list or a stream of ready batches has the same fault without the name."""
    batches: Any = ready_batches()
    data = batches if kind == "list" else (lambda: iter(batches))
    with pytest.raises(InputError):
        workloads.validate(with_data(data, samples=10))


@pytest.mark.parametrize("asked", [32, 100, 128])
def test_a_batch_has_the_size_that_was_asked_for(asked: int) -> None:
    """The first dimension of what really comes is looked at, at every step."""
    layout = Layout(processes=1, local_batch=asked)
    step = next(BatchStream(blobs(320, 1), samples=320, layout=layout, rank=0, seed=0).from_samples(0))
    assert [len(inputs) for inputs, _ in step.micro_batches] == [asked]

    class Fixed(Numbered):
        def get_batch(self, indices: Any) -> Any:
            return [torch.stack(parts) for parts in zip(*(self[int(index)] for index in indices[:32]), strict=True)]

    fixed = BatchStream(Fixed(320), samples=320, layout=layout, rank=0, seed=0).from_samples(0)
    if asked == 32:
        assert len(next(fixed).micro_batches[0][0]) == 32
    else:
        with pytest.raises(InputError, match=f"a batch of {asked} samples was asked for and one of 32 came"):
            next(fixed)


# P43


def test_a_stream_without_length_is_asked_for_its_samples_and_planned_with_them() -> None:
    """Elsewhere it ends in a type error deep in a scheduler."""
    with pytest.raises(InputError, match=r"samples: train_data \(Stream\) has no length. Set samples"):
        with_data(Stream(200)).train_set()
    made = with_data(Stream(200), samples=150)
    workloads.validate(made)
    assert describe(made, JOB).train_samples == 150


@pytest.mark.parametrize(("states", "found"), [(1, "more"), (150, "more"), (250, "200")])
def test_a_stream_whose_length_is_not_true_is_refused(states: int, found: str) -> None:
    """A length that some worker divided by the batch, or multiplied by itself."""
    with pytest.raises(InputError, match=f"its length says {states}, but it yields {found} items"):
        with_data(Stream(200, states)).train_set()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_stream_is_trained_on_once_however_many_read_it(workers: int, processes: int) -> None:
    """Elsewhere two loader workers each yield everything, and every sample comes twice."""
    stream = Stream(64, 64)
    once = sorted(stream.data.tensors[0][:, 0].tolist())
    assert trained_on(with_data(stream).train_set(), 64, workers, processes) == once


def test_a_stream_sorted_by_class_and_cut_names_the_classes_that_are_gone() -> None:
    """The first samples of a sorted stream are of the first classes alone (P36 too)."""

    class Sorted(Stream):
        def __iter__(self) -> Iterator[Any]:
            return (self.data[index] for index in self.data.tensors[1].argsort(stable=True).tolist())

    [note] = describe(with_data(Sorted(300), samples=90), JOB).notes
    assert note.startswith("train_data holds none of the classes 1, 2 of eval_data")
    assert describe(with_data(Stream(300), samples=90), JOB).notes == ()


# P44


class Claims(Dataset):
    """A thousand items and a length of its own."""

    def __init__(self, length: int, endless: bool = False) -> None:
        self.data, self.length, self.endless = blobs(1000, 1), length, endless

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.data[index % 1000 if self.endless else index]


def test_a_length_of_one_with_more_items_is_an_error() -> None:
    """Elsewhere it makes a schedule of one step."""
    with pytest.raises(InputError, match="train_data: its length says 1, but there is an item 1 too"):
        workloads.validate(with_data(Claims(1)))


def test_a_length_beyond_the_items_is_an_error() -> None:
    """Items up to the last that the length promises are read before anything is planned."""
    with pytest.raises(InputError, match=r"reading item \d+ of 2000 failed"):
        workloads.validate(with_data(Claims(2000)))


@pytest.mark.parametrize(
    ("data", "said"),
    [(Claims(16), True), (Claims(999), True), (Claims(1000), False), (Claims(16, endless=True), False)],
)
def test_a_length_that_leaves_items_out_is_said(data: Claims, said: bool) -> None:
    """It may be meant, so it is a note of the plan; a data set that makes items for any number is not suspected."""
    notes = describe(with_data(data), JOB).notes
    assert any(f"there is an item {data.length} too" in note for note in notes) is said


# P45


def plan_of(samples: int, batch: int, processes: int = 1, local_batch: int = 16) -> Plan:
    recipe = make_job().recipe.model_copy(update={"batch_size": batch})
    job = make_job(recipe=recipe, target=None, cluster={"processes_per_node": processes})
    profile = make_profile(facts=make_facts(train_samples=samples), steps=(make_step(1, 1, local_batch),))
    return make_plan(profile, job, fit(profile, job), mitigation=("linear-lr", "warmup"))


@pytest.mark.parametrize(("samples", "batch"), [(100, 256), (255, 256), (1, 64)])
def test_a_batch_above_the_data_set_is_infeasible_with_its_reason(samples: int, batch: int) -> None:
    """Elsewhere it has no steps, so it takes 0 s and costs nothing."""
    plan = plan_of(samples, batch)
    large = [row for row in plan.table if row.candidate.global_batch > samples]
    assert large and not any(row.feasible for row in large)
    for row in large:
        assert f"is larger than the data set of {samples} training samples" in str(row.infeasible_because)
        assert row["time_to_train_s"].value is None and row["node_hours"].value is None
    assert all((row["time_to_train_s"].value or 0) > 0 for row in plan.table if row.feasible)
    if plan.choice is None:
        assert f"data set of {samples} training samples" in plan.reason
    with pytest.raises(InputError, match=f"{batch} samples is more than the training set's {samples}"):
        step_sizes(samples, Layout(processes=1, local_batch=batch))


def test_where_no_batch_fits_the_data_there_is_no_choice() -> None:
    """Nothing is feasible, and the plan says what would be."""
    plan = plan_of(1, 64)
    assert plan.choice is None and "training samples" in plan.reason


# P46


@pytest.mark.parametrize(("batch", "processes"), [(4, 8), (100, 8), (7, 2), (64, 3), (1, 2)])
def test_a_batch_that_does_not_divide_is_rounded_in_sight(batch: int, processes: int) -> None:
    """Elsewhere the batch is cut silently, or a device gets none."""
    plan = plan_of(20_000, batch, processes)
    for row in plan.table:
        c = row.candidate
        assert c.global_batch == c.nodes * c.processes_per_node * c.local_batch * c.accumulation
        assert c.local_batch >= 1 and row.to_dict()["global_batch"] == c.global_batch
    notes = " ".join(text for text in plan.assumptions if text.startswith(f"The reference batch of {batch} "))
    if batch > processes:
        assert f"{batch // processes * processes} on {processes} processes" in notes
    else:
        assert f"cannot be spread over more than {batch} processes" in notes


@settings(max_examples=20, deadline=None)
@given(batch=st.integers(1, 300), processes=st.integers(1, 8))
def test_the_batch_is_always_the_product_of_its_parts(batch: int, processes: int) -> None:
    """For every batch and number of devices."""
    for row in plan_of(2_000, batch, processes).table:
        c = row.candidate
        assert c.global_batch == c.processes * c.local_batch * c.accumulation <= max(2_000, batch)


def test_a_row_whose_batch_is_not_the_product_is_refused() -> None:
    """A plan that somebody changed by hand is not believed."""
    row = plan_of(20_000, 64).table[0].to_dict()
    with pytest.raises(KeyError, match="is not nodes x processes x local batch x accumulation"):
        Row.from_dict({**row, "global_batch": row["global_batch"] + 1})


# P47


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mapping[str, Any], list[dict[str, Any]]]]:
    """Runs of 64 samples and two epochs, stopped at 40 and at 64 and resumed elsewhere, with the samples each took."""
    folder = tmp_path_factory.mktemp("resumed")
    log = folder / "log"
    log.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        find_support(patch, folder / "home")
        patch.setenv("CASES_LOG", str(log))
        begun = {
            f"{stop}-{ranks}": {"workload": "numbered_64", "local_batch": 8, "batch": 8, "stop_at": stop}
            | {"checkpoint": str(folder / f"{stop}-{ranks}.pt")}
            for stop in (40, 64)
            for ranks in (1, 2, 3)
        }
        again = {
            ranks: {
                f"{stop}-{ranks} again": {"workload": "numbered_64", "local_batch": local, "resume": True}
                | {"checkpoint": str(folder / f"{stop}-{ranks}.pt")}
                for stop in (40, 64)
            }
            for ranks, local in ((1, 16), (2, 8), (3, 4))
        }
        found = dict(in_world(folder / "one", 1, "runs", runs=begun | again[1]))
        for ranks in (2, 3):
            found |= in_world(folder / f"again-{ranks}", ranks, "runs", runs=again[ranks])
        yield found, noted(log)


@pytest.mark.parametrize(("ranks", "batch"), [(1, 16), (2, 16), (3, 12)])
@pytest.mark.parametrize("stop", [40, 64])
def test_every_sample_is_used_once_per_epoch_by_a_run_that_goes_on_elsewhere(
    resumed: tuple[Mapping[str, Any], list[dict[str, Any]]], stop: int, ranks: int, batch: int
) -> None:
    """Elsewhere a resumed run begins the epoch anew, or skips what another batch size had not seen."""
    found, passes = resumed
    name = f"{stop}-{ranks}"
    first, again = found[name], found[f"{name} again"]
    assert first["error"] == f"stopped by signal 15 after {stop} samples"
    assert again["error"] is None and again["result"]["samples"] == 128
    taken = [number for entry in passes if entry["run"] in (name, f"{name} again") for number in entry["numbers"]]
    assert sorted(taken) == sorted([*range(64), *range(64)])
    steps = stop // 8 + -(-(64 - stop) // batch) + -(-64 // batch)
    assert again["result"]["steps"] == steps
    assert [point["samples"] for point in again["result"]["curve"]] == [64, 128]


# P48


def facts_of(size: int) -> Any:
    images = TensorDataset(torch.zeros(100, 3, size, size), torch.arange(100) % 3)

    def network() -> torch.nn.Module:
        pool = torch.nn.AdaptiveAvgPool2d(1)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), pool, torch.nn.Flatten(), torch.nn.Linear(4, 3))

    return describe(with_data(images, eval_data=images, network=network), JOB)


def test_another_image_size_is_another_profile() -> None:
    """Elsewhere the step that measured small images is taken from the cache for large ones."""
    profile, job = make_profile(), make_job()
    small, large = (fingerprint(job, facts_of(size), profile.hardware) for size in (32, 224))
    assert small != large
    keep_profile(dataclasses.replace(profile, fingerprint=small))
    assert cached_profile(small) is not None and cached_profile(large) is None


@pytest.mark.parametrize("change", ["labels", "images", "length"])
def test_other_data_under_the_same_code_is_another_profile(change: str) -> None:
    """Also where only the labels were mended, which the pilots learn from."""
    inputs, labels = blobs(1000, 1).tensors
    changed = {
        "labels": (inputs, labels.roll(1)),
        "images": (inputs + 1, labels),
        "length": (inputs[:999], labels[:999]),
    }
    found = {
        describe(with_data(TensorDataset(*tensors)), JOB).code_fingerprint
        for tensors in ((inputs, labels), changed[change])
    }
    assert len(found) == 2


def test_one_label_that_changed_is_seen() -> None:
    """One of a thousand that no sample of a few would meet."""
    inputs, labels = blobs(1000, 1).tensors
    mended = labels.clone()
    mended[137] = 2 - mended[137]
    found = {describe(with_data(TensorDataset(inputs, own)), JOB).code_fingerprint for own in (labels, mended)}
    assert len(found) == 2


@pytest.mark.parametrize(("shape", "samples", "said"), [([7], 1000, "shape"), ([6], 999, "999 training samples")])
def test_a_plan_is_not_trained_on_other_data(
    tmp_path: Path, kept_signals: None, shape: list[int], samples: int, said: str
) -> None:
    """A plan is a cached result too: its times are of the data it was made for."""
    context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path)
    job = JOB.resolved(workload().recipe, None)
    task = {"job": job.to_dict(), "local_batch": 16, "accumulation": 1, "mitigation": [], "resume": False}
    task |= {"checkpoint": str(tmp_path / "c.pt"), "train_samples": samples, "sample_shape": shape}
    with pytest.raises(InputError, match=rf"plan: it was made for .*{said}.*plan again"):
        Run(context, task)
    Run(context, {**task, "train_samples": 1000, "sample_shape": [6]})
    context.close()


def test_a_plan_holds_the_shape_of_its_samples() -> None:
    """What a run is held against is in the plan's file."""
    assert plan_of(20_000, 64).facts["sample_shape"] == list(make_facts().sample_shape)
