import pytest
from hypothesis import given
from hypothesis import strategies as st

from tula_core.errors import InputError
from tula_core.job import Job, Recipe
from tula_core.mitigations import MITIGATIONS, resolve
from tula_core.mitigations.rates.plan import LearningRate, learning_rate_factor

SGD = Recipe(optimizer="sgd", learning_rate=0.1, batch_size=256, schedule="cosine")


@pytest.mark.parametrize(
    ("mitigation", "batch", "factor"),
    [
        (("linear-lr",), 1024, 4.0),
        (("sqrt-lr",), 1024, 2.0),
        (("linear-lr",), 64, 0.25),
        (("linear-lr",), 256, 1.0),
        ((), 4096, 1.0),
        (("warmup",), 4096, 1.0),
    ],
)
def test_the_factor_follows_the_rule(mitigation: tuple[str, ...], batch: int, factor: float) -> None:
    assert learning_rate_factor(mitigation, batch, 256) == factor


def test_auto_takes_the_rule_of_the_optimizers_family() -> None:
    assert resolve(Job(workload="x", recipe={"optimizer": "sgd"})) == ("linear-lr", "warmup")
    assert resolve(Job(workload="x", recipe={"optimizer": "adamw"})) == ("sqrt-lr", "warmup")
    assert resolve(Job(workload="x", mitigation="none")) == ()
    assert resolve(Job(workload="x", mitigation=["warmup"])) == ("warmup",)


def test_unknown_and_clashing_methods_are_refused() -> None:
    with pytest.raises(InputError, match="Did you mean 'linear-lr'"):
        resolve(Job(workload="x", mitigation="linear_lr"))
    with pytest.raises(InputError, match="sets the learning rate too"):
        resolve(Job(workload="x", mitigation=["linear-lr", "sqrt-lr"]))


def test_the_rate_warms_up_per_step_then_follows_the_schedule() -> None:
    rate = LearningRate.plan(SGD, 1024, ("linear-lr", "warmup"), 100_000)
    assert rate.at(0) == pytest.approx(0.1, rel=1e-6)
    assert rate.at(1024) > rate.at(0)
    assert rate.at(10_000) == pytest.approx(0.4 * 0.9755, rel=1e-3)
    assert rate.at(50_000) == pytest.approx(0.2)
    assert rate.at(100_000) == pytest.approx(0.0, abs=1e-12)


def test_a_smaller_batch_needs_no_warm_up() -> None:
    assert LearningRate.plan(SGD, 128, ("linear-lr", "warmup"), 1000).warmup_samples == 0


@given(batch=st.sampled_from([256, 512, 4096]), fraction=st.floats(0.1, 1.0))
def test_at_equal_fractions_of_the_run_the_shape_is_the_same(batch: int, fraction: float) -> None:
    """Stepping the schedule per process, or per micro-batch, makes the rate reach its end too early."""
    mine = LearningRate.plan(SGD, batch, ("linear-lr", "warmup"), 1_000_000)
    reference = LearningRate.plan(SGD, 256, ("linear-lr",), 1_000_000)
    samples = round(fraction * 1_000_000)
    assert mine.at(samples) / mine.peak == pytest.approx(reference.at(samples) / reference.peak, abs=1e-9)


def test_a_reduction_lowers_every_moment_alike() -> None:
    rate = LearningRate.plan(SGD, 1024, ("linear-lr", "warmup"), 100_000)
    for samples in (0, 500, 40_000):
        assert rate.reduced(0.5).at(samples) == pytest.approx(rate.at(samples) / 2)


def test_every_card_says_what_it_is_and_where_it_is_from() -> None:
    for name, card in MITIGATIONS.items():
        assert card.summary and "arXiv" in card.source, name
        assert set(card.excludes) <= set(MITIGATIONS) - {name}
        assert all(card.excludes.values()), name
