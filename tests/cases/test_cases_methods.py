"""Methods and what they do to the machinery around them: what is printed, skipped and counted is what happened."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from case_helpers import attempt, case_plan, find_support, in_world

from tula_core.progress import Event
from tula_core.training.run import run_attempt


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("methods")
    with pytest.MonkeyPatch.context() as patch:
        find_support(patch, home / "home")
        yield home


def test_an_overflow_on_one_rank_is_skipped_by_all_while_they_step_alone(folder: Path) -> None:
    """Elsewhere the rank that skips falls behind the others in its count, and they wait for it for ever."""
    asked = {
        "workload": "one_rank_overflows",
        "local_batch": 8,
        "mitigation": ["post-local-sgd"],
        "options": {"post-local-sgd": {"begins": 0.0, "period": 4}},
    }
    found = in_world(folder / "overflow", 2, "runs", runs={"run": asked})["run"]
    assert found["error"] is None and found["result"]["steps"] == 19
    steps = [event["steps"] for event in found["events"] if event["kind"] == "progress"]
    assert steps == [1, 2, 3, 4, 5, 5, *range(6, 20)]


def test_a_reduction_acts_on_a_method_that_sets_its_own_rate(folder: Path) -> None:
    """Elsewhere each try after a divergence runs at the rates of the first, and a lowered rate is reported."""
    plan = case_plan("steep", (1, 96, 1))
    candidate = replace(plan.table[0].candidate, mitigation=("autowu",))
    job = plan.job.model_copy(update={"mitigation": "autowu"})
    plan = replace(plan, job=job, table=(replace(plan.table[0], candidate=candidate),))
    rates: list[list[float]] = [[]]
    said: list[str] = []

    def hear(event: Event) -> None:
        said.append(event.message)
        if "learning rate lowered from" in event.message:
            rates.append([])

    def point(samples: int, figures: Mapping[str, float]) -> None:
        if "learning_rate" in figures:
            rates[-1].append(figures["learning_rate"])

    outcome, error = run_attempt(attempt(plan, folder / "reduced"), hear, point)
    assert error is None and outcome.learning_rate_reductions == len(rates) - 1 > 0
    assert "learning rate 0.02 at batch 16 -> 1e-05 to 1 (found on the way by autowu)" in "".join(said)
    # The steps between two looks are not heard; none is above the last rate of the warm-up, reduced.
    assert max(rates[-1]) <= outcome.learning_rate <= 0.5**outcome.learning_rate_reductions * (1 + 1e-9)
