import pytest
from hypothesis import given
from hypothesis import strategies as st

from tula_core.errors import InputError
from tula_core.job import Job, Recipe
from tula_core.mitigations import MITIGATIONS, complete, make, resolve
from tula_core.mitigations.method import Setting
from tula_core.mitigations.rates.plan import LearningRate, learning_rate_factor
from tula_core.training.rate import RunRate, rate_words
from tula_core.training.state import Progress

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


RATE_METHODS = [
    "none",
    "lars",
    "lamb",
    "schedule-free",
    "adascale",
    "autowu",
    "growth",
    "seesaw",
    "legw",
    "lars autowu",
]


def rate_of(names: str) -> RunRate:
    recipe = Recipe(optimizer="sgd", learning_rate=0.1, batch_size=256, epochs=10, schedule="cosine")
    run = Setting(
        recipe=recipe,
        processes=1,
        rank=0,
        local_batch=1024,
        accumulation=1,
        train_samples=10_000,
        total_samples=100_000,
        seed=0,
    )
    chosen = [] if names == "none" else names.split()
    options = complete(chosen, {})
    return RunRate(LearningRate.plan(recipe, 1024, chosen, 100_000, options), make(chosen, run, options), chosen)


@pytest.mark.parametrize("names", RATE_METHODS)
def test_a_reduction_lowers_every_moment_alike_whatever_sets_the_rate(names: str) -> None:
    """Elsewhere a method that sets the rate itself takes no heed of it: each try diverges at the rate of the first."""
    whole, lowered = rate_of(names), rate_of(names)
    lowered.reduce(2)
    for samples in (0, 500, 40_000):
        rate = whole.at(samples, Progress())
        assert rate > 0 and lowered.at(samples, Progress()) == pytest.approx(rate / 4)


@pytest.mark.parametrize("names", RATE_METHODS)
def test_the_peak_that_is_told_is_that_of_the_steps(names: str) -> None:
    """Elsewhere it is the plan's, which a method then multiplies by ten."""
    rate, progress = rate_of(names), Progress()
    highest = max(rate.at(samples, progress) for samples in range(0, 100_000, 50))
    facts = rate.facts()
    assert rate.peak(progress) == pytest.approx(highest, rel=0.02)
    assert facts["least"] * 0.98 <= highest <= facts["most"] * (1 + 1e-9)
    assert (facts["least"] == facts["most"]) is not (names.endswith("autowu") or names == "adascale")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("none", "-> 0.1 (not scaled)"),
        ("linear-lr", "-> 0.4 (linear rule, factor 4)"),
        ("legw", "-> 0.2 (legw rule, factor 2, warm-up over 4,000 samples)"),
        ("linear-lr lars", "-> 4 (linear rule, factor 4, times 10 by lars)"),
        ("adascale", "-> 0.1 to 0.4 (found on the way by adascale)"),
        ("autowu", "-> 1e-05 to 1 (found on the way by autowu)"),
    ],
)
def test_what_is_said_of_the_rate_is_what_will_be_done(names: str, words: str) -> None:
    said = rate_words(rate_of(names).facts(), SGD, 1024)
    assert said.startswith("global batch 1024: learning rate") and said.endswith(words)


def test_every_card_says_what_it_is_and_where_it_is_from() -> None:
    for name, card in MITIGATIONS.items():
        assert card.summary and "arXiv" in card.source, name
        assert set(card.excludes) <= set(MITIGATIONS) - {name}
        assert all(card.excludes.values()), name
