from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import FakePredictor, job, profile

from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.mitigations import packages_of
from tula_core.mitigations.batches.stages import processes_of
from tula_core.search.alone import check_begin_alone
from tula_core.search.space import candidates


def asking(recipe=None, **parts) -> Job:
    constraints = {"begin_alone": True, **parts.pop("constraints", {})}
    return job(recipe, constraints=constraints, **{"cluster": {"processes_per_node": 2}, **parts})


def widening(asked: Job) -> bool:
    """Return whether the search has a candidate of the job that begins on one process and takes others later."""
    found = candidates(profile(), asked, FakePredictor(), packages_of(asked))
    return any(c.stages and processes_of(c.stages[0]) == 1 < c.processes for c in found)


@pytest.mark.parametrize(
    ("recipe", "parts", "why", "remedy"),
    [
        (
            {},
            {"cluster": {"nodes": 1, "processes_per_node": 1}},
            "cluster.nodes 1 and cluster.processes_per_node 1 are one process",
            "Raise one of the two to 2",
        ),
        (
            {},
            {"mitigation": "none"},
            "mitigation 'none' does not grow the batch on a schedule",
            "Set mitigation to growth, seesaw or auto",
        ),
        (
            {},
            {"mitigation": ["lars", "ema"]},
            "mitigation ['lars', 'ema'] does not grow",
            "Set mitigation to growth, seesaw or auto",
        ),
        ({}, {"mitigation": "adaptive-batch"}, "mitigation 'adaptive-batch' does not grow the batch on a schedule", ""),
        (
            {},
            {"mitigation_options": {"growth": {"until": 0}}},
            "with mitigation_options.growth.until 0 growth has its largest batch from the first step on",
            "Raise mitigation_options.growth.until,",
        ),
        (
            {"schedule": "constant"},
            {"mitigation": "seesaw"},
            "seesaw grows the batch where the rate falls, and recipe.schedule 'constant' keeps it",
            "Choose another recipe.schedule,",
        ),
        (
            {"schedule": "constant", "optimizer": "adam"},
            {"mitigation_options": {"growth": {"until": 0}}},
            "first step on and seesaw grows",
            "Raise mitigation_options.growth.until or choose another recipe.schedule,",
        ),
    ],
)
def test_a_job_none_of_whose_candidates_can_begin_alone_is_refused_with_the_remedy(recipe, parts, why, remedy):
    asked = asking(recipe, **parts)
    with pytest.raises(InputError) as refused:
        check_begin_alone(asked)
    text = str(refused.value)
    assert text.startswith("constraints.begin_alone: true cannot be kept, because ") and why in text
    assert remedy in text and text.endswith("or set constraints.begin_alone to false.")
    assert not widening(asked)
    check_begin_alone(job(recipe, **parts))  # without the limit it is any job


@settings(max_examples=40, deadline=None)
@given(
    nodes=st.integers(1, 5),
    processes=st.integers(1, 3),
    batch=st.integers(1, 128),
    epochs=st.integers(1, 20),
    optimizer=st.sampled_from(["sgd", "adam"]),
    schedule=st.sampled_from(["cosine", "constant", "step", "linear", "trapezoid"]),
    mitigation=st.sampled_from(["auto", "growth", "seesaw", "none", "warmup"]),
)
def test_nothing_that_the_search_could_offer_is_refused(
    nodes, processes, batch, epochs, optimizer, schedule, mitigation
):
    asked = asking(
        {"batch_size": batch, "epochs": epochs, "optimizer": optimizer, "schedule": schedule},
        cluster={"nodes": nodes, "processes_per_node": processes},
        mitigation=mitigation,
    )
    try:
        check_begin_alone(asked)
    except InputError:
        assert not widening(asked)


@pytest.mark.parametrize(
    ("cluster", "least"),
    [
        ({"processes_per_node": 2, "price_per_node_hour": 3.6, "billing_seconds": 3600}, 7.2),
        ({"nodes": 2, "price_per_node_hour": 3.6, "billing_seconds": 3600}, 10.8),
        ({"nodes": 2, "spot_price_per_node_hour": 1.0}, 3 / 3600),
    ],
)
def test_a_budget_below_what_two_launches_are_billed_is_refused_and_the_one_it_names_is_not(cluster, least):
    def with_budget(usd: float) -> Job:
        return asking(cluster=cluster, constraints={"budget_usd": usd})

    with pytest.raises(InputError, match=r"constraints\.budget_usd is .*Raise constraints\.budget_usd to") as refused:
        check_begin_alone(with_budget(0.99 * least))
    named = float(str(refused.value).split("Raise constraints.budget_usd to ")[1].split(",")[0])
    assert named == pytest.approx(least, rel=0.05) and named >= least * (1 - 1e-9)
    check_begin_alone(with_budget(named))
    check_begin_alone(job(cluster=cluster, constraints={"budget_usd": 0.99 * least}))
