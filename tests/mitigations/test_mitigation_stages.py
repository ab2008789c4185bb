import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tula_core.engine.shares import Layout, step_sizes, window_sizes
from tula_core.job import Recipe
from tula_core.mitigations.batches.stages import Course, batch_of, begun_alone, place, planned_stages, share_of, staged
from tula_core.records import Candidate, Stage


def course(train_samples: int = 6400, options: dict[str, dict[str, float]] | None = None, **recipe: object) -> Course:
    fields: dict[str, object] = {"learning_rate": 0.1, "batch_size": 64, "epochs": 5} | recipe
    return Course(recipe=Recipe(**fields), train_samples=train_samples, options=options or {})


def candidate(**fields: object) -> Candidate:
    shape: dict[str, object] = {"nodes": 1, "processes_per_node": 2, "local_batch": 128, "accumulation": 2}
    return Candidate(**shape | {"mitigation": ("growth",)} | fields)


def test_growth_goes_from_the_recipes_batch_to_the_planned_one_local_batch_first() -> None:
    stages = planned_stages(("growth",), candidate(), course())
    assert stages is not None
    assert [(stage.local_batch, stage.accumulation) for stage in stages] == [(32, 1), (64, 1), (128, 1), (128, 2)]
    assert [stage.from_samples for stage in stages] == [
        0,
        8512,
        17024,
        25600,
    ]  # steps that end next to thirds of 0.8 of 32,000
    assert {(stage.nodes, stage.processes_per_node) for stage in stages} == {(1, 2)}


def test_a_batch_that_does_not_grow_has_no_stages() -> None:
    plain = candidate(mitigation=("linear-lr",))
    assert planned_stages(plain.mitigation, plain, course()) is None and staged(plain, course()) == plain
    small = candidate(local_batch=16, accumulation=1)
    assert planned_stages(small.mitigation, small, course()) is None and staged(small, course()) == small


def test_a_schedule_that_never_falls_keeps_the_recipes_batch() -> None:
    flat = staged(candidate(mitigation=("seesaw",)), course(schedule="constant"))
    assert (flat.global_batch, flat.stages) == (64, None)
    falling = staged(candidate(mitigation=("seesaw",)), course(schedule="cosine"))
    assert falling.stages is not None and batch_of(falling.stages[-1]) == falling.global_batch == 512
    assert batch_of(falling.stages[0]) == 64


def test_options_of_the_job_are_followed() -> None:
    stages = planned_stages(("growth",), candidate(), course(options={"growth": {"until": 0.3, "factor": 8.0}}))
    assert stages is not None and [batch_of(stage) for stage in stages] == [64, 512]
    assert stages[1].from_samples == pytest.approx(0.3 * 32_000, abs=64)


@settings(max_examples=150, deadline=None)
@given(
    processes=st.integers(1, 6),
    local_batch=st.integers(1, 40),
    accumulation=st.integers(1, 4),
    train_samples=st.integers(30, 900),
    epochs=st.integers(1, 6),
    first=st.integers(1, 64),
    name=st.sampled_from(["growth", "seesaw"]),
    schedule=st.sampled_from(["cosine", "linear"]),
)
def test_stages_are_within_the_planned_layout_and_begin_where_a_step_ends(
    processes: int,
    local_batch: int,
    accumulation: int,
    train_samples: int,
    epochs: int,
    first: int,
    name: str,
    schedule: str,
) -> None:
    shape = {"processes_per_node": processes, "local_batch": local_batch, "accumulation": accumulation}
    planned = candidate(mitigation=(name,), **shape)
    if planned.global_batch > train_samples:
        return
    chosen = course(train_samples, batch_size=first, epochs=epochs, schedule=schedule)
    found = staged(planned, chosen)
    if found.stages is None:
        return
    batches = [batch_of(stage) for stage in found.stages]
    assert batches == sorted(batches) and batches[-1] == found.global_batch <= planned.global_batch
    assert found.stages[0].from_samples == 0 and found.stages[-1].from_samples < chosen.total_samples
    assert all(stage.local_batch <= local_batch and stage.accumulation <= accumulation for stage in found.stages)
    assert min(stage.local_batch * stage.accumulation for stage in found.stages) >= min(2, local_batch * accumulation)
    for before, after in itertools.pairwise(found.stages):
        assert after.from_samples in ends_of_steps(before, after.from_samples, train_samples)
        left = train_samples - after.from_samples % train_samples
        assert left == train_samples or left >= 2 * processes


def ends_of_steps(stage: Stage, until: int, train_samples: int) -> list[int]:
    """Walk the steps that the engine takes from the beginning of a stage."""
    layout = Layout(processes=stage.processes_per_node, local_batch=stage.local_batch, accumulation=stage.accumulation)
    at, ends = stage.from_samples, []
    while at < until:
        left = train_samples - at % train_samples
        sizes = window_sizes(left, layout) if at % train_samples else step_sizes(train_samples, layout)
        for size in sizes:
            at += size
            ends.append(at)
    return ends


def test_no_stage_begins_where_processes_would_be_left_without_samples() -> None:
    small = Stage(from_samples=0, nodes=1, processes_per_node=1, local_batch=10, accumulation=1)
    large = Stage(from_samples=95, nodes=4, processes_per_node=2, local_batch=10, accumulation=1)
    assert [stage.from_samples for stage in place([small, large], 100, 300)] == [0, 100]


def test_shares_are_whole_samples() -> None:
    odd = candidate(processes_per_node=3, local_batch=7, accumulation=3)
    assert [share_of(batch, odd) for batch in (1, 12, 30, 63)] == [(2, 1), (4, 1), (5, 2), (7, 3)]


def test_one_process_begins_as_long_as_it_takes_the_batch() -> None:
    grown = staged(candidate(nodes=2, local_batch=128, accumulation=1), course())
    alone = begun_alone(grown, course())
    assert alone is not None and alone.stages is not None and grown.stages is not None
    shapes = [(s.nodes, s.processes_per_node, s.local_batch, s.accumulation) for s in alone.stages]
    assert shapes == [(1, 1, 64, 1), (1, 1, 128, 1), (2, 2, 64, 1), (2, 2, 128, 1)]
    assert [batch_of(s) for s in alone.stages] == [batch_of(s) for s in grown.stages]
    assert [s.from_samples for s in alone.stages] == [s.from_samples for s in grown.stages]


def test_there_is_nothing_to_begin_alone_where_one_process_cannot_or_is_all_there_is() -> None:
    small = staged(candidate(nodes=2, local_batch=32, accumulation=1), course())
    single = staged(candidate(processes_per_node=1), course())
    assert small.stages is not None and begun_alone(small, course()) is None
    assert single.stages is not None and begun_alone(single, course()) is None
    assert begun_alone(candidate(), course()) is None


def test_one_process_accumulates_for_the_first_batch_alone() -> None:
    """Where memory is short a run may still begin on one process, with a micro-batch that is known to fit."""
    alone = begun_alone(staged(candidate(local_batch=32, accumulation=4), course()), course())
    assert alone is not None and alone.stages is not None
    shapes = [(s.nodes, s.processes_per_node, s.local_batch, s.accumulation) for s in alone.stages[:2]]
    assert shapes[0] == (1, 1, 32, 2) and shapes[1][:2] == (alone.nodes, alone.processes_per_node)
