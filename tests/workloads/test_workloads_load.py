import sys
import textwrap

import pytest
import torch
from torch import nn

from tula_core.errors import InputError
from tula_core.job import Job, builtin_names
from tula_core.workloads import WORKLOADS, describe, load_workload, validate
from tula_core.workloads.measures import mse


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a module into a current folder of its own, forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)

    def write_module(name, text):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))

    yield write_module
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


GOOD = """
    import torch
    from torch.utils.data import TensorDataset
    from tula_core.job import Recipe
    from tula_core.workloads import LOSSES, METRICS, Workload

    def make(**changes):
        data = TensorDataset(torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2)
        fields = dict(name="w", network=lambda: torch.nn.Linear(3, 2), train_data=data, eval_data=data,
                      loss=LOSSES["cross_entropy"], metric=METRICS["accuracy"], recipe=Recipe(epochs=2))
        return Workload(**{**fields, **changes})
"""


def test_every_built_in_workload_has_a_job_and_a_description():
    assert set(builtin_names()) == set(WORKLOADS)
    for name, entry in WORKLOADS.items():
        assert entry.description
        job = Job.builtin(name)
        workload = load_workload(job)
        assert workload.name == name
        assert job.resolved(workload.recipe, workload.target).target == workload.target


def test_an_unknown_workload_names_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'fashion-cnn'"):
        load_workload(Job(workload="fashion-cn"))


def test_a_function_is_found_in_the_current_folder_and_called(write):
    write("mine_a", GOOD)
    workload = load_workload(Job(workload="mine_a:make"))
    validate(workload)
    assert workload.recipe.epochs == 2


def test_a_function_that_takes_the_job_gets_it(write):
    write("mine_b", GOOD + "\n    def seeded(job):\n        return make(name=f'seed{job.seed}')\n")
    assert load_workload(Job(workload="mine_b:seeded", seed=7)).name == "seed7"


def test_a_function_that_needs_more_is_refused(write):
    write("mine_c", GOOD + "\n    def greedy(job, width):\n        return make()\n")
    with pytest.raises(InputError, match="greedy needs the arguments job, width"):
        load_workload(Job(workload="mine_c:greedy"))


def test_the_current_folder_is_searched_last(write, tmp_path):
    write("twice", GOOD)
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "twice.py").write_text(textwrap.dedent(GOOD).replace('name="w"', 'name="first"'))
    assert load_workload(Job(workload="twice:make"), search_path=[str(tmp_path / "first")]).name == "first"


def test_a_failing_import_shows_its_last_line_its_place_and_the_paths(write, tmp_path):
    write("broken", "import torch\nimport no_such_thing_here\n")
    with pytest.raises(InputError) as caught:
        load_workload(Job(workload="broken:make"))
    message = str(caught.value)
    assert "ModuleNotFoundError: No module named 'no_such_thing_here'" in message
    assert f"{tmp_path}/broken.py:2" in message
    assert f"Searched: {sys.path[0]}" in message
    assert message.rindex(str(tmp_path)) > message.index("Searched")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("def make(:\n", "SyntaxError"), ("raise SystemExit(3)\n", "SystemExit"), ("x = 1 / 0\n", "ZeroDivisionError")],
)
def test_whatever_ends_an_import_is_shown(write, text, expected):
    write("ends", text)
    with pytest.raises(InputError, match=f"{expected}.*ends.py:1"):
        load_workload(Job(workload="ends:make"))


def test_a_module_or_function_that_is_not_there(write):
    write("mine_d", GOOD)
    with pytest.raises(InputError, match="No module named 'absent_module'"):
        load_workload(Job(workload="absent_module:make"))
    with pytest.raises(InputError, match=r"mine_d.py has no 'mak'. It has: .*make"):
        load_workload(Job(workload="mine_d:mak"))


def test_a_function_that_raises_leads_to_its_line(write):
    write("mine_e", "def make():\n    values = []\n    return values[3]\n")
    with pytest.raises(InputError, match=r"IndexError: list index out of range .*mine_e.py:3"):
        load_workload(Job(workload="mine_e:make"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ("name=''", "name is str"),
        ("network=torch.nn.Linear(3, 2)", "network is Linear, must be a function that returns a new"),
        ("train_data=3", "train_data is int"),
        ("loss='mse'", "loss is str"),
        ("metric='accuracy'", "metric is str, must be a Metric"),
        ("recipe={}, samples=0", "recipe is dict.*samples is int"),
        ("target=0.9, collate=1", "target is float.*collate is int"),
    ],
)
def test_each_wrong_field_is_named(write, changes, expected):
    write("mine_f", GOOD + f"\n    def wrong():\n        return make({changes})\n")
    with pytest.raises(InputError, match=expected):
        load_workload(Job(workload="mine_f:wrong"))


def test_a_result_of_another_type_is_named(write):
    write("mine_g", "def make():\n    return {'network': None}\n")
    with pytest.raises(InputError, match="gave dict. It must return a tula_core.workloads.Workload"):
        load_workload(Job(workload="mine_g:make"))


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"target": {"value": 97}}, "target.value: 97 cannot be reached, accuracy is at most 1"),
        ({"target": {"metric": "mse", "value": 0.1}}, "target.metric: 'mse' is not what the workload measures"),
        ({"metric": "mse", "target": {"metric": "mse", "value": -1}}, "mse is at least 0"),
        ({"metric": "acc"}, "metric: 'acc' is unknown"),
        ({"loss": "hinge"}, "loss: 'hinge' is unknown"),
        ({"samples": 2000}, "samples: 2000 is more than the 1438"),
    ],
)
def test_fields_that_do_not_fit_are_refused(job, expected):
    with pytest.raises(InputError, match=expected):
        load_workload(Job.from_mapping({"workload": "digits-cnn", **job})).train_set()


def test_loss_and_metric_of_the_job_go_first():
    workload = load_workload(Job(workload="digits-cnn", metric="top5_accuracy"))
    assert workload.metric.name == "top5_accuracy"
    assert workload.target is None


def test_samples_cut_a_built_in_set():
    workload = load_workload(Job(workload="digits-cnn", samples=100, seed=1))
    assert len(workload.train_set()) == 100
    assert len(workload.eval_set()) == 359
    assert workload.train_set() is workload.train_set()


@pytest.mark.parametrize("network", ["small-cnn", "mlp", "resnet18-small", "squeezenet1_1"])
def test_a_network_by_name_fits_the_data_set(network):
    job = Job(network=network, dataset="digits", samples=64)
    workload = load_workload(job)
    if network == "squeezenet1_1":
        with pytest.raises(InputError, match="network: Sequential failed on a batch from train_data of shape"):
            validate(workload)
    else:
        validate(workload)
        assert describe(workload, job).train_samples == 64


def test_torchvision_networks_take_grey_images_and_as_many_outputs_as_there_are_classes():
    workload = load_workload(Job(network="resnet18", dataset="Digits"))
    images, _ = workload.train_set().get_batch([0, 1])
    assert workload.network()(images).shape == (2, 10)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"network": "resnet19", "dataset": "digits"}, "network: 'resnet19' is unknown. Did you mean 'resnet1"),
        ({"network": "fasterrcnn_resnet50_fpn", "dataset": "digits"}, "network: 'fasterrcnn"),
        ({"network": "mlp", "dataset": "digit"}, "dataset: 'digit' is unknown. Did you mean 'digits'"),
        ({"network": "mlp", "dataset": "./nowhere"}, "nowhere' is not a folder"),
        ({"network": "mlp", "dataset": "absent_module:data"}, "dataset: importing 'absent_module' failed"),
    ],
)
def test_unknown_networks_and_data_sets(fields, expected):
    with pytest.raises(InputError, match=expected):
        load_workload(Job(**fields))


DATA = """
    import torch
    from torch.utils.data import IterableDataset, TensorDataset

    def both():
        return one(), one()

    def one():
        return TensorDataset(torch.arange(40).float().view(20, 2), torch.arange(20).float())

    class Stream(IterableDataset):
        classes = ("even", "odd")
        opened = 0

        def __iter__(self):
            self.opened += 1
            assert self.opened == 1
            return ((torch.ones(2) * index, index % 2) for index in range(30))

    def streams():
        return Stream(), Stream()

    def network(shape, outputs):
        return torch.nn.Linear(shape[0], outputs)
"""


def test_user_data_and_networks_by_import_path(write):
    write("mine_h", DATA)
    job = Job(network="mine_h:network", dataset="mine_h:both", loss="mse")
    workload = load_workload(job)
    validate(workload)
    assert workload.loss is mse
    assert workload.metric.name == "mse"
    assert workload.network().out_features == 1
    assert not workload.notes


def test_one_data_set_is_split_and_it_is_said(write):
    write("mine_i", DATA)
    workload = load_workload(Job(network="mine_i:network", dataset="mine_i:one", loss="mse"))
    assert (len(workload.train_set()), len(workload.eval_set())) == (18, 2)
    seen = {float(x[0]) for part in (workload.train_set(), workload.eval_set()) for x, _ in part}
    assert len(seen) == 20
    assert "A tenth of mine_i:one" in workload.notes[0]


def test_a_stream_is_planned_with_samples_and_asked_for_them_without(write):
    write("mine_j", DATA)
    fields = {"network": "mine_j:network", "dataset": "mine_j:streams"}
    with pytest.raises(InputError, match="samples: train_data .Stream. has no length"):
        validate(load_workload(Job(**fields)))
    job = Job(**fields, samples=24)
    workload = load_workload(job)
    validate(workload)
    assert (len(workload.train_set()), len(workload.eval_set())) == (24, 30)
    assert workload.network().out_features == 2


def test_importing_workloads_leaves_torchvision_alone():
    import subprocess

    code = "import sys, tula_core.workloads; print('torchvision' in sys.modules, 'mlflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_workload_builds_a_new_network_each_time():
    workload = load_workload(Job(workload="digits-cnn"))
    torch.manual_seed(0)
    first, second = workload.network(), workload.network()
    assert isinstance(first, nn.Module)
    assert first is not second
