import pytest
from factories import make_job, make_profile
from search_fakes import FakePredictor

from tula_core.models.predictor import fit
from tula_core.records import Candidate
from tula_core.search.methods import forecast_growing, method_notes


def test_a_plan_says_which_methods_act_in_its_forecast() -> None:
    plain = " ".join(method_notes(("linear-lr", "warmup"), {}))
    assert "pilots trained with the rates of linear-lr and warmup" in plain and "beware" not in plain
    costly = " ".join(method_notes(("linear-lr", "sam", "ema"), {}))
    assert "pilots trained without sam and ema" in costly and "2.06 times" in costly
    assert "stages of growth are part" in " ".join(method_notes(("growth",), {}))
    assert "2 times" in " ".join(method_notes(("batch-augmentation",), {}))
    assert "6 times" in " ".join(method_notes(("batch-augmentation",), {"batch-augmentation": {"copies": 6}}))
    assert method_notes(("batch-augmentation",), {"batch-augmentation": {"copies": 1}})[1:] == []
    assert method_notes((), {}) == []


def test_a_batch_that_follows_the_noise_may_never_grow() -> None:
    candidate = Candidate(nodes=1, processes_per_node=2, local_batch=512, mitigation=("adaptive-batch",))
    start = Candidate(nodes=1, processes_per_node=2, local_batch=32, mitigation=("adaptive-batch",))
    predictor = FakePredictor()
    (row,) = forecast_growing(predictor, [candidate], 64)
    (planned, begun) = predictor.forecast([candidate, start])
    assert row.candidate == candidate and not row.measured
    assert row["steps"].value == planned["steps"].value < begun["steps"].value <= row["steps"].high
    assert row["memory_bytes"] == planned["memory_bytes"]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_costly_method_lengthens_the_step_and_widens_it(processes: int) -> None:
    candidate = Candidate(nodes=1, processes_per_node=processes, local_batch=64, mitigation=("sam",))
    plain, costly = (
        fit(make_profile(), make_job(), step_costs={"sam": cost}).forecast([candidate])[0] for cost in (1.0, 2.0)
    )
    one, two = plain["step_time_s"], costly["step_time_s"]
    assert 1.3 < two.value / one.value < 2.0 + 1e-9
    assert two.high / two.value > 1.4 * one.high / one.value
    assert plain.measured and not costly.measured
