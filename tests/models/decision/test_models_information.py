from __future__ import annotations

import math

import numpy as np
import pytest
from factories import make_step
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from tula_core.models.decision.beliefs import log_steps, step_belief
from tula_core.models.decision.information import (
    Belief,
    expected_regret,
    gain_of_all,
    knowledge_gradient,
    measured,
)
from tula_core.models.step.communication import fit_links
from tula_core.models.step.fit import fit_step_time
from tula_core.models.step.time import Shapes

MEANS = st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=5)


def two_point_gain(gap, spread):
    """E[max(0, spread Z - gap)]: what may be won by a candidate that lies ``gap`` behind."""
    return spread * norm.pdf(gap / spread) - gap * norm.cdf(-gap / spread)


def belief(means, seed=0):
    """A correlated belief with unequal spreads."""
    root = np.random.default_rng(seed).normal(scale=0.2, size=(len(means), len(means)))
    return Belief(mean=np.array(means), covariance=root @ root.T)


@pytest.mark.parametrize(("gap", "sd"), [(0.0, 0.1), (0.05, 0.1), (0.1, 0.05)])
def test_of_two_candidates_regret_and_gain_have_their_closed_forms(gap, sd):
    two = Belief.independent([0.0, gap], [0.0, sd])
    assert expected_regret(two) == pytest.approx(two_point_gain(gap, sd), abs=5e-4)
    for noise in (0.0, 0.1):
        spread = sd**2 / math.hypot(sd, noise)
        sure, unsure = knowledge_gradient(two, [0, 1], noise)
        assert sure == 0.0 and unsure == pytest.approx(two_point_gain(gap, spread), rel=0.05, abs=2e-4)


def test_gains_agree_with_a_simulation_of_measuring():
    beliefs, noise = belief([0.0, 0.1, 0.05, 0.3]), 0.1
    generator = np.random.default_rng(5)
    truths = generator.multivariate_normal(beliefs.mean, beliefs.covariance, size=4000)
    for option, gain in enumerate(knowledge_gradient(beliefs, range(4), noise)):
        seen = truths[:, option] + noise * generator.standard_normal(4000)
        after = [measured(beliefs, option, value, noise).mean.min() for value in seen]
        assert gain == pytest.approx(beliefs.mean.min() - np.mean(after), abs=0.006)


def test_a_belief_after_a_measurement_is_that_of_the_normal_law():
    before = belief([0.0, 0.2, 0.4])
    joint = np.linalg.inv(np.linalg.inv(before.covariance) + np.diag([0.0, 1 / 0.05**2, 0.0]))
    after = measured(before, 1, 0.5, 0.05)
    assert after.covariance == pytest.approx(joint, abs=1e-9)
    precision = np.linalg.inv(before.covariance) @ before.mean + np.array([0.0, 0.5 / 0.05**2, 0.0])
    assert after.mean == pytest.approx(joint @ precision)


@given(MEANS, st.integers(0, 20), st.floats(0.0, 0.5))
@settings(max_examples=30, deadline=None)
def test_a_measurement_is_worth_nothing_or_more_and_never_more_than_knowing_all(means, seed, noise):
    held = belief(means, seed)
    gains = knowledge_gradient(held, range(len(means)), noise)
    regret = expected_regret(held, seed=1)
    slack = 0.02 * math.sqrt(held.covariance.max())  # two quadratures
    assert (gains >= 0).all() and (gains <= regret + slack).all()
    assert gains.max() <= gain_of_all(held, range(len(means)), noise) + slack <= regret + 2 * slack


@given(MEANS, st.integers(0, 20), st.floats(-3.0, 3.0))
@settings(max_examples=30, deadline=None)
def test_worth_depends_on_differences_alone_and_falls_with_the_noise(means, seed, shift):
    held = belief(means, seed)
    moved = Belief(mean=held.mean + shift, covariance=held.covariance)
    gains = knowledge_gradient(held, range(len(means)), 0.05)
    assert knowledge_gradient(moved, range(len(means)), 0.05) == pytest.approx(gains, abs=1e-9)
    assert (knowledge_gradient(held, range(len(means)), 0.5) <= gains + 1e-12).all()


def test_what_is_known_or_hopeless_is_worth_nothing():
    assert expected_regret(Belief.independent([0.0, 0.1], [0.0, 0.0])) == 0.0
    far = Belief.independent([0.0, 5.0], [0.0, 0.1])
    assert expected_regret(far) == 0.0 and knowledge_gradient(far, [1], 0.0)[0] == 0.0
    together = Belief(mean=np.array([0.0, 0.01]), covariance=np.full((2, 2), 0.04))
    assert expected_regret(together) == pytest.approx(0.0, abs=1e-9)  # both move alike: the choice stays


def test_two_measurements_may_be_needed_where_one_tells_nothing():
    linked = Belief.independent([0.0, 0.3, 0.3], [0.0, 0.1, 0.1])
    both = gain_of_all(linked, [1, 2], 0.0)
    assert both >= knowledge_gradient(linked, [1, 2], 0.0).max()
    assert gain_of_all(linked, [0], 0.1) == 0.0


def test_the_same_belief_gives_the_same_numbers():
    held = belief([0.0, 0.1, 0.2])
    assert expected_regret(held) == expected_regret(held)
    assert gain_of_all(held, [0, 2], 0.1) == gain_of_all(held, [0, 2], 0.1)


def test_steps_fall_as_the_batch_grows_up_to_the_critical_batch():
    batches = np.array([1.0, 2.0, 1e6, 2e6])
    steps = np.exp(log_steps(batches, 1000.0))
    assert steps[0] / steps[1] == pytest.approx(2.0, rel=2e-3)
    assert steps[2] / steps[3] == pytest.approx(1.0, rel=2e-3)


class TestStepBelief:
    steps = [make_step(1, 1, batch) for batch in (16, 64, 256)]
    model = fit_step_time(steps, fit_links([], device="cpu", link_gbps=None), device="cpu", gradient_bytes=4e5)
    shapes = Shapes(
        nodes=np.array([1.0, 1.0, 1.0, 4.0]),
        processes_per_node=np.array([1.0, 1.0, 2.0, 2.0]),
        local_batch=np.array([64.0, 96.0, 64.0, 64.0]),
        accumulation=np.ones(4),
    )

    def test_what_is_unknown_grows_away_from_what_was_measured(self):
        held = step_belief(self.model, self.shapes, np.zeros(4))
        sd = np.sqrt(np.diag(held.covariance))
        assert sd[0] < 0.04 and sd[0] <= sd[1] < sd[2] < sd[3]
        assert np.linalg.eigvalsh(held.covariance).min() > -1e-12
        assert held.mean == pytest.approx(np.log(self.model.predict(self.shapes)[0]))

    def test_neighbours_are_wrong_together_and_never_wholly(self):
        held = step_belief(self.model, self.shapes, np.zeros(4))
        sd = np.sqrt(np.diag(held.covariance))
        together = held.covariance / np.outer(sd, sd)
        assert 0.0 < together[2, 3] < 1.0 and together[0, 3] < together[2, 3]

    def test_measuring_more_leaves_less_to_find_out(self):
        # All are worth the same before, so that nothing but knowing them better can tell them apart.
        weight = -np.log(self.model.predict(self.shapes)[0])
        before = step_belief(self.model, self.shapes, weight)
        links = fit_links([], device="cpu", link_gbps=None)
        more = [*self.steps, *(make_step(n, p, 64) for n, p in ((1, 2), (4, 2), (2, 2)))]
        after = step_belief(fit_step_time(more, links, device="cpu", gradient_bytes=4e5), self.shapes, weight)
        assert expected_regret(after) < expected_regret(before)
