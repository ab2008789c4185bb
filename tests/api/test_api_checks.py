from dataclasses import replace

import pytest
from train_helpers import hand_made_plan

import tula_core as tula
from tula_core.errors import InputError
from tula_core.job import load_job


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"mitigation": "nosuch"}, "mitigation: 'nosuch' is unknown"),
        ({"mitigation": ["linear-lr", "sqrt-lr"]}, "sets the learning rate too"),
        ({"constraints": {"budget_usd": 5}}, "constraints.budget_usd: 5 cannot be checked"),
        ({"constraints": {"begin_alone": True}}, "constraints.begin_alone: true cannot be kept"),
    ],
)
def test_what_the_job_alone_shows_to_be_wrong_is_said_before_measuring(
    fields: dict[str, object], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tula_core import profiling

    monkeypatch.setattr(profiling, "profile", lambda *_, **__: pytest.fail("was measured"))
    job = tula.Job.from_mapping({"workload": "digits-cnn", **fields})
    for stage in (tula.plan, tula.profile):
        with pytest.raises(InputError, match=expected):
            stage(job)


def test_an_unknown_workload_is_named_before_torch_is_loaded(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "job.yaml").write_text("workload: digit-cnn")
    with pytest.raises(InputError, match="workload: 'digit-cnn' is unknown. Did you mean 'digits-cnn'"):
        load_job(str(tmp_path / "job.yaml"))


def test_a_number_beyond_all_use_is_refused() -> None:
    with pytest.raises(InputError, match="recipe.batch_size: input should be less than or equal to 1000000000000"):
        tula.Job.builtin("digits-cnn", ["recipe.batch_size=99999999999999999999"])


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        ({"mitigation": ("lars", "lamb")}, {}, "'lars' and 'lamb' do not go together"),
        ({"mitigation": ("ema",)}, {"ema": {"keep": 5.0}}, r"ema\.keep: 5 is out of bounds"),
        ({"options": {"foo": 1}}, {}, "the row's option 'foo' is unknown"),
        ({"options": {"precision": "fp99"}}, {}, "the row's precision 'fp99' is unknown"),
    ],
)
def test_a_row_that_was_edited_is_refused_before_training(
    change: dict[str, object], options: dict[str, dict[str, float]], expected: str
) -> None:
    plan = hand_made_plan("plain")
    row = replace(plan.table[0], candidate=replace(plan.table[0].candidate, **change))  # type: ignore[arg-type]
    job = plan.job.model_copy(update={"mitigation_options": options})
    with pytest.raises(InputError, match=expected):
        tula.train(replace(plan, table=(row,), job=job))
