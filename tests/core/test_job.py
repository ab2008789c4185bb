from pathlib import Path

import pytest

from tula_core.errors import InputError
from tula_core.job import Job, Recipe, Target, builtin_names, load_job, with_overrides

GOOD = """
workload: digits-cnn
recipe: {optimizer: adamw, epochs: 3}
target: {value: 0.9}
cluster: {nodes: 2, processes_per_node: 4, price_per_node_hour: 1.5}
constraints: {deadline: 2h, memory: 16GiB}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return path


def test_a_file_is_read_with_its_units(tmp_path: Path) -> None:
    job = Job.from_yaml(write(tmp_path, GOOD))
    assert job.constraints.deadline == 7200
    assert job.constraints.memory == 16 * 2**30
    assert job.title == "digits-cnn"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("workload: x\nrecpe: {}", "recpe: unknown key. Did you mean 'recipe'?"),
        ("workload: x\nrecipe: {epoch: 3}", "recipe.epoch: unknown key. Did you mean 'epochs'?"),
        ("workload: x\nrecipe: {epochs: 0}", "recipe.epochs: input should be greater than 0, got 0"),
        ("workload: x\nrecipe: {batch_size: -4}", "recipe.batch_size: input should be greater than 0, got -4"),
        ("workload: x\ncluster: {nodes: 0}", "cluster.nodes: input should be greater than 0, got 0"),
        ("workload: x\ncluster: {price_per_node_hour: -1}", "cluster.price_per_node_hour"),
        ("workload: x\nprobe: {seconds: 0}", "probe.seconds: input should be greater than 0, got 0"),
        ("workload: x\nprobe: {seconds: .inf}", "probe.seconds"),
        ("workload: x\nconstraints: {budget_usd: -5}", "constraints.budget_usd"),
        ("workload: x\nconstraints: {deadline: soon}", "one of the units s, m, h, d, got 'soon'"),
        ("workload: x\nconstraints: {memory: 3 apples}", "one of the units B, kB"),
        ("workload: x\nconstraints: {min_accuracy: 90}", "less than or equal to 1, got 90"),
        ("workload: x\nobjective: fastest", "'knee', 'time', 'cost' or 'energy'"),
        ("workload: x\nobjective: {}", "objective: has no weight"),
        ("workload: x\nseed: -1", "seed"),
        ("workload: x\nobjective: {time: true}", "objective: true and false are not allowed here"),
        ("workload: x\nmitigation_options: {lars: {trust: true}}", "mitigation_options: true and false"),
        ("workload: x\ncluster: {device_tflops: 1.0e+200}", "less than or equal to 1000000000"),
        ("workload: x\ncluster: {device_tflops: {}}", "cluster.device_tflops: holds no rate"),
        (
            "workload: x\ncluster: {spot_interruptions_per_hour: 1}",
            "cluster.spot_interruptions_per_hour: given without spot_price_per_node_hour. Give that price too, or "
            "leave the interruptions out.",
        ),
        ("workload: x\nwhat_if: [{name: a, nods: 1}]", "what_if.0.nods: unknown key. Did you mean 'nodes'?"),
        (
            'workload: x\nwhat_if: [{name: "a\\e[2J", device_memory: 1, device_tflops: 1, device_memory_gbps: 1}]',
            "can be printed",
        ),
        ("workload: x\nnetwork: resnet18\ndataset: CIFAR10", "Keep one of the two forms"),
        ("network: resnet18", "workload: missing"),
        ("name: a/b\nworkload: x", "name"),
        ("- 1\n- 2", "found list, expected keys and values"),
        ("", "found NoneType, expected keys and values"),
        ("a: [1, 2", "is not YAML"),
    ],
)
def test_each_fault_names_field_value_and_remedy(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        Job.from_yaml(write(tmp_path, text))
    assert expected in str(caught.value)
    assert "job.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file"):
        Job.from_yaml(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        Job.from_yaml(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        Job.from_yaml(binary)


def test_an_unknown_builtin_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="Did you mean 'digits-cnn'"):
        load_job("digit-cnn")


@pytest.mark.parametrize("name", builtin_names())
def test_builtin_jobs_are_valid_and_named_after_themselves(name: str) -> None:
    assert Job.builtin(name).title == name


def test_overrides_reach_nested_fields_and_are_read_as_yaml() -> None:
    job = Job.builtin("digits-cnn", ["recipe.epochs=3", "target=none", "constraints.deadline=15m"])
    assert job.recipe.epochs == 3
    assert job.target == "none"
    assert job.constraints.deadline == 900


@pytest.mark.parametrize("text", ["recipe.epochs", "=3", "name.x=1", "recipe.epochs=[1"])
def test_a_wrong_override_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--set"):
        with_overrides({"name": "a", "workload": "x"}, [text])


def test_resolving_fills_what_was_not_given() -> None:
    reference = Recipe(learning_rate=0.3, epochs=7)
    job = Job(workload="x", recipe={"epochs": 2}).resolved(reference, Target(value=0.8))
    assert (job.recipe.learning_rate, job.recipe.epochs) == (0.3, 2)
    assert job.target == Target(value=0.8)
    assert Job(workload="x", target="none").resolved(reference, Target(value=0.8)).target is None


def test_plain_values_round_trip() -> None:
    job = Job.builtin("digits-cnn", ["recipe.epochs=3"])
    assert Job.from_mapping(job.to_dict()) == job
    resolved = job.resolved(Recipe(), None)
    again = Job.from_mapping(resolved.to_dict())
    assert again.digest == resolved.digest != job.digest


def test_a_resolved_job_completes_its_request_and_no_other() -> None:
    request = Job(workload="x", recipe={"epochs": 2})
    resolved = request.resolved(Recipe(learning_rate=0.3), Target(value=0.8))
    assert resolved.completes(request)
    assert not resolved.completes(Job(workload="x", recipe={"epochs": 3}))
    assert not resolved.completes(Job(workload="x", recipe={"epochs": 2}, target="none"))
    assert not resolved.completes(Job(workload="x", recipe={"epochs": 2}, seed=1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cluster.price_per_node_hour", "true"),
        ("constraints.deadline", "yes"),
        ("constraints.memory", "true"),
        ("recipe.learning_rate", "true"),
        ("target.value", "false"),
    ],
)
def test_true_is_not_taken_for_one(field: str, value: str) -> None:
    with pytest.raises(InputError, match=rf"{field}: true and false are not allowed here, got"):
        Job.builtin("digits-cnn", [f"{field}={value}"])


def test_switches_still_take_true() -> None:
    assert Job.builtin("digits-cnn", ["recipe.channels_last=true"]).recipe.channels_last


@pytest.mark.parametrize("name", [".", "..", "  ", "-x", "a/b", "Straße"])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="name: a name begins with one of a-z"):
        Job.from_mapping({"workload": "x", "name": name})


def test_a_title_made_from_a_path_is_fit_for_a_file() -> None:
    job = Job(network="resnet18", dataset="/data/" + "x" * 300)
    assert job.title.startswith("resnet18--data-x")
    assert len(job.title) == 100


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{time: -1}", "objective.time: input should be greater than 0, got -1"),
        ("{tim: 1}", "objective.tim: input should be 'time', 'cost' or 'energy', got 'tim'"),
        ("{time: .nan}", "objective.time: input should be a finite number, got nan"),
    ],
)
def test_a_wrong_weight_is_named(value: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        Job.builtin("digits-cnn", [f"objective={value}"])
    assert expected in str(caught.value)


def test_precisions_are_considered_beside_the_recipes_own() -> None:
    job = Job(workload="x", precisions=["bf16", "fp32", "bf16"]).resolved(Recipe(), None)
    assert job.other_precisions == ("bf16",)
    assert Job(workload="x").other_precisions == ()
    changed = job.in_precision("bf16")
    assert (changed.recipe.precision, changed.recipe.epochs) == ("bf16", job.recipe.epochs)
    assert job.in_precision(None) is job
    assert Job.from_mapping(job.to_dict()) == job
    with pytest.raises(InputError, match="precisions"):
        Job.from_mapping({"workload": "x", "precisions": ["int8"]})
    with pytest.raises(InputError, match="precisions"):
        Job.from_mapping({"workload": "x", "precisions": []})


def test_a_rate_to_be_measured_is_a_switch_and_never_text() -> None:
    job = Job.builtin("digits-cnn", ["recipe.learning_rate=auto"])
    assert job.to_dict()["recipe"] == {"range_test": True}
    assert job.recipe.learning_rate == Recipe().learning_rate
    assert Job.from_mapping(job.to_dict()) == job
    assert job.digest != Job.builtin("digits-cnn").digest


def test_a_measured_rate_falls_back_on_what_is_stated_and_on_nothing_else() -> None:
    asked = Job(workload="x", recipe={"learning_rate": "auto"})
    stated = asked.resolved(Recipe(learning_rate=0.3), None)
    assert (stated.recipe.learning_rate, stated.recipe.range_test) == (0.3, True)
    unstated = asked.resolved(Recipe(epochs=3), None)
    assert "learning_rate" not in unstated.recipe.model_fields_set
    assert "learning_rate" not in Job.from_mapping(unstated.to_dict()).recipe.model_fields_set
    both = Job(workload="x", recipe={"learning_rate": 0.2, "range_test": True}).resolved(
        Recipe(learning_rate=0.3), None
    )
    assert (both.recipe.learning_rate, both.recipe.range_test) == (0.2, True)


@pytest.mark.parametrize(
    ("recipe", "reference", "rate", "tested"),
    [
        ({}, Recipe(learning_rate=0.3), 0.3, False),
        ({}, Recipe(batch_size=32), 0.05, True),
        ({}, Recipe(optimizer="adam"), 1e-3, True),
        ({"range_test": False}, Recipe(optimizer="adam"), 1e-3, False),
        ({"optimizer": "adamw"}, Recipe(learning_rate=0.3), 1e-3, True),
        ({"optimizer": "adamw"}, Recipe(optimizer="adam", learning_rate=0.002), 0.002, False),
        ({"optimizer": "sgd"}, Recipe(optimizer="adam", learning_rate=0.002), 0.05, True),
        ({"optimizer": "adam", "learning_rate": 0.01}, Recipe(learning_rate=0.3), 0.01, False),
    ],
)
def test_a_rate_that_nobody_states_for_the_optimizer_is_measured(
    recipe: dict[str, object], reference: Recipe, rate: float, tested: bool
) -> None:
    resolved = Job(workload="x", recipe=recipe).resolved(reference, None).recipe
    assert (resolved.learning_rate, resolved.range_test) == (rate, tested)
    assert "learning_rate" in resolved.model_fields_set


def test_a_number_goes_before_a_workloads_wish_to_have_it_measured() -> None:
    wish = Recipe(learning_rate="auto")
    assert wish.range_test
    assert Job(workload="x").resolved(wish, None).recipe.range_test
    assert not Job(workload="x", recipe={"learning_rate": 0.2}).resolved(wish, None).recipe.range_test


def test_a_job_at_the_measured_rate_completes_its_request() -> None:
    asked = Job(workload="x", recipe={"learning_rate": 0.2, "range_test": True})
    resolved = asked.resolved(Recipe(), None).at_learning_rate(0.04)
    assert resolved.recipe.learning_rate == 0.04
    assert resolved.completes(asked)
    assert not resolved.completes(Job(workload="x", recipe={"learning_rate": 0.2}))


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (
            {"learning_rate": "high"},
            "recipe.learning_rate: write a number above 0, or auto to have it measured, got 'hi",
        ),
        ({"learning_rate": "-1"}, "recipe.learning_rate: input should be greater than 0"),
        ({"learning_rate": "nan"}, "recipe.learning_rate: input should be "),
        ({"learning_rate": "auto", "range_test": False}, "recipe.range_test: false contradicts learning_rate: auto"),
    ],
)
def test_another_word_for_a_rate_is_refused(recipe: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        Job.from_mapping({"workload": "x", "recipe": recipe})
    assert expected in str(caught.value)
