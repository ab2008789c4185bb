import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from tula_core.job import Job
from tula_core.workloads import LOSSES, METRICS, Workload, describe, load_workload

JOB = Job(workload="digits-cnn")


class Noise(Dataset):
    def __init__(self, size=32, seed=0, transform=None, fixed=True, length=40):
        self.size, self.seed, self.transform, self.fixed, self.length = size, seed, transform, fixed, length
        self.targets = torch.arange(length) % 4

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed + index) if self.fixed else torch.Generator()
        if not self.fixed:
            generator.seed()
        return torch.randn(3, self.size, self.size, generator=generator), self.targets[index]


def workload(width=8, **options):
    return Workload(
        name="noise",
        network=lambda: nn.Sequential(
            nn.Conv2d(3, width, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 4)
        ),
        train_data=Noise(**options),
        eval_data=lambda: Noise(**options),
        loss=LOSSES["cross_entropy"],
        metric=METRICS["accuracy"],
    )


def fingerprint(**options):
    return describe(workload(**options), JOB).code_fingerprint


def test_facts_of_the_digits():
    facts = describe(load_workload(JOB), JOB)
    assert (facts.train_samples, facts.eval_samples, facts.sample_shape) == (1438, 359, (1, 8, 8))
    assert facts.sample_bytes == 256
    assert facts.gradient_bytes == 4 * facts.parameters
    assert facts.chance == pytest.approx(0.1, abs=0.01)
    assert facts.has_batch_norm
    assert (facts.metric, facts.higher_is_better, facts.metric_ceiling) == ("accuracy", True, 1.0)


def test_frozen_weights_have_no_gradient():
    def network():
        made = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Linear(10, 10))
        made[1].requires_grad_(False)
        return made

    facts = describe(replace(load_workload(JOB), network=network), JOB)
    assert facts.gradient_bytes == 4 * 110
    assert facts.parameters == 110 + 650
    assert not facts.has_batch_norm


def test_the_same_workload_has_the_same_fingerprint():
    assert fingerprint() == fingerprint()
    assert fingerprint(fixed=False) == fingerprint(fixed=False)


@pytest.mark.parametrize(
    "changes",
    [{"size": 224}, {"seed": 9}, {"width": 9}, {"length": 41}, {"transform": "Resize(3)"}, {"fixed": False}],
    ids=str,
)
def test_another_data_or_network_has_another_fingerprint(changes):
    assert fingerprint(**changes) != fingerprint()


def test_describing_leaves_the_generators_alone():
    state = torch.get_rng_state()
    describe(workload(), JOB)
    assert torch.equal(torch.get_rng_state(), state)


MODULE = """
import torch
from torch.utils.data import TensorDataset
from helper_module import Net
from tula_core.workloads import LOSSES, METRICS, Workload

def make():
    data = TensorDataset(torch.ones(20, 3), torch.arange(20) % 2)
    return Workload(name="w", network=Net, train_data=data, eval_data=data, loss=LOSSES["cross_entropy"],
                    metric=METRICS["accuracy"])
"""
HELPER = """
import torch

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)

    def forward(self, x):
        return super().forward(x) * 1.0
"""
CODE = """
from tula_core.job import Job
from tula_core.workloads import describe, load_workload
job = Job(workload="mine:make")
print(describe(load_workload(job), job).code_fingerprint)
"""


def run_in(folder):
    # The interpreter's own current-folder entry is left out, as for an installed command.
    root = str(__import__("pathlib").Path(__file__).parents[2])
    code = f"import sys; sys.path[0] = {root!r}\n{CODE}"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_fingerprint_is_the_same_in_every_process_and_follows_the_users_code(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "helper_module.py").write_text(HELPER)
    first = run_in(tmp_path)
    assert first == run_in(tmp_path)
    (tmp_path / "helper_module.py").write_text(HELPER.replace("* 1.0", "* 2.0"))
    assert run_in(tmp_path) != first
