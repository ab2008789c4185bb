"""Every process opens the data by itself: they have to open the same, in the same order, at every attempt.

Elsewhere each rank shuffles or splits for itself, so that samples are used twice or never and training meets what is
held out. Here the generators and the hashes of a process are fixed before the user's code runs, and what comes from
elsewhere is found by digests of items at the same places, which are also in the plan.
"""

import ast
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from case_workloads import workload
from tiny_workloads import blobs
from torch.utils.data import Dataset, TensorDataset

from tula_core.engine.context import WorkerContext
from tula_core.engine.launch import LaunchResult, WorkerTask, launch
from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.training.same_data import require_same_data
from tula_core.workloads import Workload
from tula_core.workloads.data_sample import sample_data
from tula_core.workloads.describe import describe

JOB = Job(workload="case_workloads:plain")
SEEDABLE = ("shuffled_stream", "set_order", "random_split", "late_split")


def ranks(folder: Path, entry: str, **payload: Any) -> LaunchResult:
    task = WorkerTask(
        entry=f"unsteady_workloads:{entry}", payload=payload, folder=folder, processes_per_node=2, timeout_s=120
    )
    return launch(task, lambda event: None)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What two processes opened in two attempts, by workload and role."""
    folder = tmp_path_factory.mktemp("opened")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))
        patch.delenv("PYTHONHASHSEED", raising=False)
        for attempt in (1, 2):
            ranks(folder / str(attempt), "opened", workloads=SEEDABLE, log=str(folder), attempt=attempt).unwrap()
    return {
        f"{name}-{role}": {path.read_text() for path in folder.glob(f"{name}-{role}-*-*")}
        for name in SEEDABLE
        for role in ("train", "eval")
    }


@pytest.mark.parametrize("name", SEEDABLE)
def test_processes_and_attempts_open_the_same_data(opened: dict[str, set[str]], name: str) -> None:
    """Elsewhere a quarter of the samples is trained on twice and another quarter never."""
    assert [len(opened[f"{name}-{role}"]) for role in ("train", "eval")] == [1, 1]


@pytest.mark.parametrize("name", ["random_split", "late_split"])
def test_what_is_held_out_is_not_trained_on(opened: dict[str, set[str]], name: str) -> None:
    """Elsewhere each opening holds another part out, and the accuracy is of samples that were trained on."""
    train, held_out = (ast.literal_eval(next(iter(opened[f"{name}-{role}"]))) for role in ("train", "eval"))
    assert sorted([*train, *held_out]) == list(range(64))
    assert train != sorted(train)


def test_data_that_differ_between_processes_are_refused(tmp_path: Path) -> None:
    """Elsewhere, and where no seed can help, they are trained on without a word."""
    failure = ranks(tmp_path, "rig").failure
    assert failure is not None and failure.kind == "input"
    assert "train_data: the 2 processes opened different data: the targets" in failure.message
    assert "such as numpy.random.default_rng()" in failure.message


def task_for(planned: Workload) -> dict[str, Any]:
    facts = describe(planned, JOB)
    sample = {role: dataclasses.asdict(one) for role, one in facts.data_sample.items()}
    return {"train_samples": facts.train_samples, "sample_shape": list(facts.sample_shape), "data_sample": sample}


@pytest.mark.parametrize("role", ["train_data", "eval_data"])
def test_an_attempt_with_other_data_than_planned_is_refused(tmp_path: Path, kept_signals: None, role: str) -> None:
    """Elsewhere a run that goes on has another split, or reads what was sorted anew."""
    context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path)
    planned = workload(samples=300)
    task = task_for(planned)
    require_same_data(context, planned, 300, task)
    data: Any = getattr(planned, role)
    turned = TensorDataset(*(tensor.flip(0) for tensor in data.tensors))
    with pytest.raises(InputError, match=f"plan: it was made for other {role}: .* targets are not the same"):
        require_same_data(context, dataclasses.replace(planned, **{role: turned}), 300, task)
    context.close()


def test_other_pictures_with_the_same_labels_are_said(tmp_path: Path, kept_signals: None) -> None:
    """It may be another decoder, so the run goes on."""
    context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path)
    planned = workload(samples=300)
    inputs, labels = blobs(300, 1).tensors
    changed = dataclasses.replace(planned, train_data=TensorDataset(inputs + 1, labels))
    require_same_data(context, changed, 300, task_for(planned))
    context.close()
    assert "of 4 items of train_data the inputs are not those" in (tmp_path / "events.jsonl").read_text()


class OwnNoise(Dataset[Any]):
    """Items with noise of a generator of their own, or with any label."""

    def __init__(self, part: int) -> None:
        self.data, self.part = blobs(100, 1), part
        self.generator = torch.Generator()
        self.generator.seed()

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        item = list(self.data[index])
        item[self.part] = item[self.part] + torch.randint(1000, item[self.part].shape, generator=self.generator)
        return tuple(item)


def test_items_that_cannot_be_compared_are_said_and_not_refused() -> None:
    """An augmentation with a generator of its own is no other data."""
    made = dataclasses.replace(workload(), train_data=OwnNoise(0))
    first, second = (sample_data(made, "train_data", most=16) for _ in range(2))
    assert first == second and set(first.inputs) == {None} and None not in first.targets
    [note] = [note for note in describe(made, JOB).notes if "come out differently" in note]
    assert note.startswith("the inputs of train_data come out differently when read again with the same seeds")
