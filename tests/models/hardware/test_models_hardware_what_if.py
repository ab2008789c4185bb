from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from factories import make_job, make_profile, make_step

from tula_core.errors import InputError
from tula_core.job import Cluster, Job, NodeType
from tula_core.models.hardware.what_if import ElsewherePredictor, elsewhere
from tula_core.models.predictor import Predictor, fit
from tula_core.models.step.time import Shapes
from tula_core.records import Candidate, Profile, Row

HERE = {"device_tflops": 10.0, "device_memory_gbps": 500.0}


@pytest.fixture(scope="module")
def profile() -> Profile:
    return make_profile(steps=tuple(make_step(1, p, b) for p in (1, 2, 4) for b in (16, 64, 256)))


@pytest.fixture(scope="module")
def job() -> Job:
    return make_job(cluster=Cluster(nodes=2, processes_per_node=4, price_per_node_hour=3.0, **HERE))


@pytest.fixture(scope="module")
def predictor(profile: Profile, job: Job) -> Predictor:
    return fit(profile, job)


def node(**facts: Any) -> NodeType:
    return NodeType(**{"name": "other", "nodes": 2, "processes_per_node": 4, "device_memory": 2**34, **HERE, **facts})


def candidates() -> list[Candidate]:
    shapes = [(1, 1, 16), (1, 1, 256), (1, 4, 64), (2, 4, 64)]
    return [Candidate(nodes=n, processes_per_node=p, local_batch=b) for n, p, b in shapes]


def there(predictor: Predictor, profile: Profile, **facts: Any) -> list[Row]:
    return elsewhere(predictor, profile, node(**facts))[0].forecast(candidates())


def values(rows: list[Row], name: str) -> np.ndarray:
    return np.array([row[name].value for row in rows], dtype=float)


def width(row: Row, name: str) -> float:
    interval = row[name]
    assert interval.high is not None
    assert interval.low
    return interval.high / interval.low


def test_a_machine_of_the_same_facts_gets_the_same_forecast_but_wider(profile: Profile, predictor: Predictor) -> None:
    here, other = predictor.forecast(candidates()), there(predictor, profile)
    assert values(other, "step_time_s") == pytest.approx(values(here, "step_time_s"), rel=1e-6)
    for first, second in zip(here, other, strict=True):
        assert width(second, "step_time_s") > 1.1 * width(first, "step_time_s")
        # Where the number of epochs rules, the draws differ a little.
        assert width(second, "time_to_train_s") > 0.98 * width(first, "time_to_train_s")
        assert not second.measured
        assert second["epochs"] == first["epochs"]
        assert second["memory_bytes"] == first["memory_bytes"]


@pytest.mark.parametrize(
    "faster",
    [
        {"device_tflops": 30.0},
        {"device_memory_gbps": 1500.0},
        {"device_tflops": 100.0, "device_memory_gbps": 5000.0},
        {"inside_link_gbps": 4000.0},
        {"link_gbps": 400.0},
    ],
)
def test_a_faster_machine_is_never_slower(profile: Profile, predictor: Predictor, faster: dict[str, float]) -> None:
    slow = {"link_gbps": 10.0, "inside_link_gbps": 40.0}
    before, after = there(predictor, profile, **slow), there(predictor, profile, **{**slow, **faster})
    for name in ("step_time_s", "time_to_train_s"):
        assert (values(after, name) <= values(before, name) * (1 + 1e-9)).all()
        assert (values(after, name) < values(before, name)).any()


def test_large_batches_gain_what_the_device_gains_and_floors_hardly_move(profile: Profile, job: Job) -> None:
    predictor = fit(profile, job)
    made, _, _ = elsewhere(predictor, profile, node(device_tflops=40.0, device_memory_gbps=2000.0))
    shapes = Shapes.of([Candidate(nodes=1, processes_per_node=1, local_batch=b) for b in (1, 4096)])
    gain = predictor.models.step.predict(shapes)[0] / made.models.step.predict(shapes)[0]
    assert gain[0] == pytest.approx(4**0.1, rel=1e-6)
    assert 3.5 < gain[1] <= 4.0


def test_the_price_moves_the_cost_and_nothing_else(profile: Profile, predictor: Predictor) -> None:
    cheap, dear = (there(predictor, profile, price_per_node_hour=price) for price in (1.0, 5.0))
    assert values(dear, "cost_usd") == pytest.approx(5 * values(cheap, "cost_usd"))
    for first, second in zip(cheap, dear, strict=True):
        others = [name for name in first.forecast if name != "cost_usd"]
        assert [first[name] for name in others] == [second[name] for name in others]
    assert there(predictor, profile)[0]["cost_usd"].value is None


def test_energy_is_known_only_with_the_power_of_a_node(profile: Profile, job: Job) -> None:
    powered = job.model_copy(update={"cluster": job.cluster.model_copy(update={"power_watts": 300.0})})
    predictor = fit(profile, powered)
    assert all(row["energy_j"].value is None for row in there(predictor, profile))
    rows = there(predictor, profile, power_watts=500.0)
    assert values(rows, "energy_j") == pytest.approx(500.0 * 3600 * values(rows, "node_hours"))


def test_the_rate_at_the_recipes_precision_counts(profile: Profile, predictor: Predictor) -> None:
    many = there(predictor, profile, device_tflops={"fp32": 20.0, "bf16": 900.0})
    assert values(many, "step_time_s") == pytest.approx(
        values(there(predictor, profile, device_tflops=20.0), "step_time_s")
    )
    with pytest.raises(InputError, match=r"what_if 'other'\.device_tflops: has bf16.*fp32"):
        there(predictor, profile, device_tflops={"bf16": 900.0})


def test_a_reference_without_facts_is_refused(profile: Profile) -> None:
    predictor = fit(profile, make_job(cluster=Cluster(device_memory_gbps=500.0)))
    with pytest.raises(InputError, match=r"cluster\.device_tflops: not given"):
        elsewhere(predictor, profile, node())


def test_the_machine_there_has_its_own_memory_and_size(profile: Profile, predictor: Predictor) -> None:
    made, moved, moved_job = elsewhere(predictor, profile, node(name="big", device_memory=80 * 2**30, nodes=3))
    assert isinstance(made, ElsewherePredictor)
    assert moved.hardware.device_memory_bytes == 80 * 2**30
    assert moved.hardware.device == "cuda"
    assert (moved_job.cluster.nodes, moved_job.what_if) == (3, ())
    assert moved.steps == profile.steps
    assert any("nothing was measured on big" in text for text in made.assumptions)


def test_a_truth_with_known_rates_is_recovered(profile: Profile, job: Job) -> None:
    """The same steps, three times as fast in all, on a machine whose facts say so."""
    quick = dataclasses.replace(
        profile,
        steps=tuple(make_step(s.nodes, s.processes_per_node, s.local_batch, factor=1 / 3) for s in profile.steps),
    )
    shapes = Shapes.of([Candidate(nodes=1, processes_per_node=1, local_batch=b) for b in (64, 256, 1024)])
    truth, _ = fit(quick, job).models.step.predict(shapes)
    made, _, _ = elsewhere(fit(profile, job), profile, node(device_tflops=30.0, device_memory_gbps=1500.0))
    forecast, log_sd = made.models.step.predict(shapes)
    assert (np.abs(np.log(forecast / truth)) < 1.645 * log_sd).all()
    assert abs(np.log(forecast / truth)[-1]) < 0.1


def test_the_power_there_is_the_nodes_own_in_energy_and_in_the_bill(profile: Profile) -> None:
    cluster = Cluster(nodes=2, processes_per_node=4, electricity_usd_per_kwh=0.36, power_watts=500.0, **HERE)
    predictor = fit(profile, make_job(cluster=cluster))
    for watts in (20.0, 2000.0):
        for row in there(predictor, profile, power_watts=watts):
            assert row["energy_j"].value == pytest.approx(row["node_hours"].value * 3600 * watts)
            assert row["cost_usd"].value == pytest.approx(row["energy_j"].value * 1e-7)
    assert all(row["cost_usd"].value is None for row in there(predictor, profile))


def test_a_budget_with_electricity_needs_the_nodes_power() -> None:
    cluster = {"electricity_usd_per_kwh": 0.3, "power_watts": 100, "price_per_node_hour": 1.0, **HERE}
    facts = node(price_per_node_hour=1.0).model_dump()
    with pytest.raises(ValueError, match="what_if: 'other' has no power_watts, so constraints.budget_usd"):
        Job(workload="x", cluster=cluster, what_if=[facts], constraints={"budget_usd": 1.0})
