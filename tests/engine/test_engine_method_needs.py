import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from train_helpers import hand_made_plan

from tula_core.engine.method_needs import fitted_options
from tula_core.errors import InputError
from tula_core.progress import silent
from tula_core.training.run import Attempt, run_attempt
from tula_core.workloads import LOSSES, METRICS, Workload


def workload(targets: torch.Tensor, width: int = 4, shape: tuple[int, ...] = (3, 2, 2)) -> Workload:
    data = TensorDataset(torch.zeros(8, *shape), targets)
    return Workload(
        name="linear",
        network=lambda: nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width)),
        train_data=data,
        eval_data=data,
        loss=LOSSES["cross_entropy"],
        metric=METRICS["accuracy"],
    )


LABELS = workload(torch.arange(8) % 4)


@pytest.mark.parametrize("name", ["label-smoothing", "mixup", "cutmix"])
def test_the_number_of_classes_is_found_from_the_networks_outputs(name: str) -> None:
    assert fitted_options([name], {}, LABELS)[name]["classes"] == 4.0
    assert fitted_options([name], {name: {"classes": 4.0}}, LABELS)[name]["classes"] == 4.0


@pytest.mark.parametrize("classes", [2.0, 3.5, 5.0])
def test_another_number_of_classes_is_refused(classes: float) -> None:
    with pytest.raises(InputError, match=r"mixup\.classes: .* is not the number of the network's outputs, 4"):
        fitted_options(["mixup"], {"mixup": {"classes": classes}}, LABELS)


def test_methods_are_refused_where_the_workload_lacks_what_they_act_on() -> None:
    for lacking in (workload(torch.zeros(8, 4)), workload(torch.zeros(8, dtype=torch.long), width=1)):
        with pytest.raises(InputError, match="'conadv' needs one class number for each sample"):
            fitted_options(["conadv"], {}, lacking)
    for name in ("mixup", "batch-augmentation", "progressive-resolution"):
        with pytest.raises(InputError, match=f"{name!r} changes images that have one label each"):
            fitted_options([name], {}, workload(torch.arange(8) % 4, shape=(3,)))
    with pytest.raises(InputError, match="'batch-augmentation' changes images that have one label each"):
        fitted_options(["batch-augmentation"], {}, workload(torch.zeros(8, 2, 2, dtype=torch.long)))
    with pytest.raises(InputError, match="'ghost-batch-norm' acts on layers of batch norm"):
        fitted_options(["ghost-batch-norm"], {}, LABELS)


@pytest.mark.parametrize("name", ["label-smoothing", "mixup", "cutmix"])
def test_methods_of_labels_train_with_their_default_options(tmp_path: Path, name: str) -> None:
    plan = hand_made_plan("images")
    candidate = replace(plan.table[0].candidate, mitigation=(name,))
    attempt = Attempt(
        plan=plan,
        row=replace(plan.table[0], candidate=candidate),
        job_id="job",
        number=1,
        folder=tmp_path,
        resume=False,
    )
    outcome, error = run_attempt(attempt, silent, lambda samples, figures: None)
    assert error is None and outcome.status == "FINISHED"
