"""A wrong guess of the methods from end to end: real workers, a real store, and a staged row that takes over."""

import json
from dataclasses import replace
from pathlib import Path

from train_helpers import hand_made_plan

from flows.show import _endings
from tula_core import api
from tula_core.history.evidence import gather
from tula_core.progress import Event
from tula_core.records import Outcome, Plan, Stage, load
from tula_core.records.corrections import BUILTIN
from tula_core.tracking import keys, store

STAGES = (
    Stage(from_samples=0, nodes=1, processes_per_node=1, local_batch=16, accumulation=1),
    Stage(from_samples=500, nodes=1, processes_per_node=2, local_batch=16, accumulation=1),
)


def plan_of_two_methods() -> Plan:
    """The choice is expected to do what it cannot; the other row grows from one process to two."""
    plan = hand_made_plan("plain", processes=2, local_batch=32)
    chosen = plan.table[0]
    growth = replace(chosen.candidate, local_batch=16, mitigation=("growth",), stages=STAGES)
    never = [[epoch, 0.984, 0.99, 0.996] for epoch in (1, 2, 3)]
    return replace(
        plan, table=(chosen, replace(chosen, candidate=growth)), facts={**plan.facts, "expected_curve": never}
    )


def test_a_staged_row_takes_over_and_everything_that_is_kept_says_so() -> None:
    said: list[Event] = []
    outcome = api.train(plan_of_two_methods(), listener=said.append)
    [change] = outcome.method_changes
    assert (change.cause, change.dropped, change.taken) == ("below forecast", ("linear-lr", "warmup"), ("growth",))
    assert outcome.mitigation == ("growth",) and outcome.actual["epochs"] == 3
    assert [point.samples for point in outcome.curve] == [203, 406, 609]
    assert outcome.stages[-1].processes_per_node == 2 and outcome.stages[-1].from_samples >= 500
    folder = Path(outcome.run_folder)
    assert load(Outcome, folder / "outcome.json") == outcome
    rows = json.loads((folder / "changes.json").read_text())["rows"]
    assert [row["mitigation"] for row in rows] == [["linear-lr", "warmup"], ["growth"]]
    assert any(event.level == "warning" and "a wrong guess" in event.message for event in said)
    assert any(line.startswith("The methods were a wrong guess") for line in _endings(outcome))
    evidence = gather([outcome], lambda label: BUILTIN)
    assert (evidence.changed, evidence.outcomes) == (1, 0)

    client = store.client()
    experiment = client.get_experiment_by_name(outcome.job_name)
    assert experiment is not None
    runs = {run.data.tags[keys.ROLE]: run for run in client.search_runs([experiment.experiment_id])}
    assert change.because in runs["job"].data.tags[keys.METHOD_CHANGES]
    assert runs["train"].data.metrics["method_changes"] == 1.0
