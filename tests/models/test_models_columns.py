"""Forecasts as columns: the same as rows, whatever is asked together, and made to rows only where they are wanted."""

import dataclasses

import numpy as np
import pytest

from tests.factories import make_facts, make_job, make_profile
from tula_core.errors import InputError
from tula_core.job import Cluster, Recipe
from tula_core.models.asked import CandidateColumns
from tula_core.models.feasibility import Verdict
from tula_core.models.predictor import fit
from tula_core.records import QUANTITIES, Candidate, MemoryUse, MitigationEffect
from tula_core.records.candidate import Stage

SPOT = Cluster(
    nodes=4,
    processes_per_node=4,
    spot_price_per_node_hour=0.5,
    spot_interruptions_per_hour=0.5,
    spot_restart_seconds=60,
    power_watts=300.0,
)
PLAIN = [
    Candidate(nodes=n, processes_per_node=p, local_batch=b, accumulation=a)
    for b in (1, 7, 64, 100, 9000)
    for n in (1, 3)
    for p in (1, 2)
    for a in (1, 2)
]
GROWN = Candidate(
    nodes=2,
    processes_per_node=2,
    local_batch=64,
    stages=(
        Stage(from_samples=0, nodes=1, processes_per_node=1, local_batch=64, accumulation=1),
        Stage(from_samples=20_000, nodes=2, processes_per_node=2, local_batch=64, accumulation=1),
    ),
)


def arrays_of(candidates):
    names = ("nodes", "processes_per_node", "local_batch", "accumulation")
    return CandidateColumns.of_arrays(*(np.array([getattr(c, name) for c in candidates]) for name in names))


def assert_alike(one, other):
    """The same row but for rounding: sums of products may be added up in another order."""
    assert dataclasses.replace(one, forecast={}) == dataclasses.replace(other, forecast={})
    for name in QUANTITIES:
        for end in ("value", "low", "high"):
            expected = getattr(other[name], end)
            assert getattr(one[name], end) == (None if expected is None else pytest.approx(expected, rel=1e-12))


@pytest.mark.parametrize("cluster", [Cluster(nodes=4, processes_per_node=4), SPOT])
def test_columns_hold_the_figures_of_the_rows(cluster):
    predictor = fit(make_profile(), make_job(cluster=cluster))
    columns, rows = predictor.forecast_columns(arrays_of(PLAIN)), predictor.forecast(PLAIN)
    assert columns.rows() == rows
    for name in QUANTITIES:
        if name not in columns.bands:
            assert all(row[name].value is None for row in rows)
            continue
        band = columns.bands[name]
        for end in ("value", "low", "high"):
            shown = [getattr(row[name], end) for row in rows]
            assert getattr(band, end).tolist() == pytest.approx(
                [np.nan if x is None else x for x in shown], nan_ok=True
            )
            assert [x is not None for x in shown] == columns.known[name].tolist()


def test_what_is_asked_together_changes_nothing():
    effects = {"helps": MitigationEffect(log_critical=0.5, log_critical_sd=0.2)}
    predictor = fit(make_profile(), make_job(cluster=SPOT), effects=effects)
    others = [
        GROWN,
        dataclasses.replace(PLAIN[9], mitigation=("helps",)),
        dataclasses.replace(PLAIN[9], options={"precision": "bf16"}),
        dataclasses.replace(PLAIN[9], power_limit_w=100.0),
    ]
    asked = PLAIN[:20] + others + PLAIN[20:]
    alone = [predictor.forecast([candidate])[0] for candidate in asked]
    for one, row in zip(alone, predictor.forecast(asked), strict=True):
        assert_alike(one, row)


def test_many_are_forecast_as_few_are():
    predictor = fit(make_profile(facts=make_facts(train_samples=10**7)), make_job(cluster=SPOT))
    many = [Candidate(nodes=n, processes_per_node=1, local_batch=b) for b in range(1, 1600) for n in (1, 2, 4)]
    columns = predictor.forecast_columns(many)
    for one, row in zip(columns.rows(range(0, len(many), 500)), predictor.forecast(many[::500]), strict=True):
        assert_alike(one, row)


def test_a_row_is_that_of_its_place():
    predictor = fit(make_profile(), make_job())
    asked = [*PLAIN, GROWN]
    columns, rows = predictor.forecast_columns(asked), predictor.forecast(asked)
    assert columns.row(7) == rows[7]
    assert columns.rows([len(PLAIN), 3, 3]) == [rows[-1], rows[3], rows[3]]
    assert columns.rows([]) == []


def test_verdicts_say_what_stands_against_a_candidate():
    failed = MemoryUse(nodes=1, processes_per_node=1, local_batch=512, peak_bytes=None, outcome="out_of_memory")
    profile = make_profile(memory=(*make_profile().memory, failed))
    grown = dataclasses.replace(
        GROWN, local_batch=600, stages=(GROWN.stages[0], dataclasses.replace(GROWN.stages[1], local_batch=600))
    )
    asked = [
        PLAIN[0],
        Candidate(nodes=1, processes_per_node=1, local_batch=20_001),
        Candidate(nodes=1, processes_per_node=1, local_batch=64, power_limit_w=100.0),
        Candidate(nodes=1, processes_per_node=1, local_batch=64, options={"precision": "bf16"}),
        Candidate(nodes=1, processes_per_node=1, local_batch=512),
        grown,
    ]
    columns = fit(profile, make_job()).forecast_columns(asked)
    assert columns.verdict.tolist() == [
        Verdict.FEASIBLE,
        Verdict.ABOVE_DATA,
        Verdict.NO_POWER_LIMIT,
        Verdict.PRECISION,
        Verdict.OUT_OF_MEMORY,
        Verdict.OUT_OF_MEMORY,
    ]
    rows = columns.rows()
    assert (
        columns.feasible.tolist() == [row.feasible for row in rows] == [row.infeasible_because is None for row in rows]
    )
    assert rows[1]["step_time_s"].value is None and rows[4]["step_time_s"].value is not None
    assert rows[5].infeasible_because == "local batch 512 ran out of memory when it was measured"


def test_a_host_that_its_loaders_fill_and_a_run_that_never_ends_are_told_apart():
    recipe = Recipe(**{**Recipe().model_dump(), "loader_workers": 200})
    candidate = Candidate(nodes=1, processes_per_node=2, local_batch=64)
    full = fit(make_profile(), make_job(recipe=recipe)).forecast_columns([candidate])
    assert full.verdict.tolist() == [Verdict.HOST_FULL]
    assert "loader workers" in full.row(0).infeasible_because
    often = SPOT.model_copy(update={"spot_interruptions_per_hour": 40_000.0})
    stopped = fit(make_profile(), make_job(cluster=often)).forecast_columns([candidate, GROWN])
    assert stopped.verdict.tolist() == [Verdict.NEVER_ENDS, Verdict.NEVER_ENDS]
    assert "would not end" in stopped.row(1).infeasible_because


@pytest.mark.parametrize("wrong", [np.array([1, 0]), np.array([1.0, 2.0]), np.array([-1, 4])])
def test_arrays_of_other_than_positive_whole_numbers_are_refused(wrong):
    one = np.array([1, 1])
    with pytest.raises(InputError, match=r"candidates\.local_batch: whole numbers of at least 1"):
        CandidateColumns.of_arrays(one, one, wrong, one)
