"""Whatever a person writes, or a disk makes of a file: a job, a plan, a profile, or an error that names the place."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
import yaml
from factories import make_job, make_profile
from fuzz_limits import examples, tried
from hypothesis import given
from hypothesis import strategies as st

from tula_core import mitigations
from tula_core.job import Job, with_overrides
from tula_core.job_text import NotYamlError, parse
from tula_core.models.predictor import fit
from tula_core.records import Plan, Profile, from_json, to_json
from tula_core.search import make_plan

pytestmark = pytest.mark.timeout(300)

GOOD = Job.builtin("fashion-cnn").to_dict()
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**15),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["2h", "-1h", "16GiB", "1e400", "nan", "inf", "0", "none", "auto", "../..", "a:b", "1_0", "٣"]),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside ``value``."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def altered(value: Any, path: tuple[Any, ...], new: Any, how: str) -> Any:
    """Return a copy with the value at ``path`` replaced, removed, or given under a name that nobody knows."""
    made = copy.deepcopy(value)
    place = made
    for key in path[:-1]:
        place = place[key]
    if how == "replace":
        place[path[-1]] = new
    elif how == "remove":
        del place[path[-1]]
    elif isinstance(place, dict):
        place[f"{path[-1]}x"] = place.pop(path[-1])
    return made


hows = st.sampled_from(["replace", "replace", "replace", "remove", "rename"])


@given(st.sampled_from(places(GOOD)), odd, hows)
@examples(300)
def test_any_mistake_in_a_job_is_refused_by_name_or_is_a_job(path: tuple[Any, ...], new: Any, how: str) -> None:
    with tried("jobs: one value altered"):
        job = Job.from_mapping(altered(GOOD, path, new, how))
        again = Job.from_mapping(json.loads(json.dumps(job.to_dict(), allow_nan=False)))
        assert (again, again.digest) == (job, job.digest)
        assert job.title and "/" not in job.title and not job.title.startswith(".")
        mitigations.resolve(job)


@given(st.one_of(st.text(max_size=60), odd.map(lambda value: yaml.safe_dump(value)), st.binary(max_size=40)))
@examples(150)
def test_any_text_is_a_job_or_an_error_in_words(text: str | bytes) -> None:
    with tried("jobs: any text"):
        try:
            data = parse(text if isinstance(text, str) else text.decode("utf-8", errors="replace"))
        except NotYamlError as error:
            assert str(error)
            return
        Job.from_mapping(data)


@given(st.sampled_from([".".join(str(key) for key in path) for path in places(GOOD)]), st.text(max_size=20))
@examples(150)
def test_any_override_is_taken_or_refused(path: str, value: str) -> None:
    with tried("jobs: any override"):
        Job.from_mapping(with_overrides(GOOD, [f"{path}={value}"]))


def small_plan() -> dict[str, Any]:
    profile, job = make_profile(), make_job()
    data: dict[str, Any] = json.loads(make_plan(profile, job, fit(profile, job), mitigation=("linear-lr",)).to_json())
    keep = {row["row"] for row in [data["choice"]]} | set(data["pareto"]) | set(range(3))
    last = max(keep | {data["knee"]})
    return {**data, "table": data["table"][: last + 1]}


PLAN = small_plan()
PROFILE: dict[str, Any] = json.loads(to_json(make_profile()))


@given(st.sampled_from(places(PLAN)), odd, hows)
@examples(200)
def test_a_plan_file_that_was_spoiled_is_refused_or_still_sound(path: tuple[Any, ...], new: Any, how: str) -> None:
    with tried("plan files: one value altered"):
        plan = from_json(Plan, json.dumps(altered(PLAN, path, new, how)), source="plan.json")
        for row in plan.table:
            for interval in row.forecast.values():
                assert interval.value is None or math.isfinite(interval.value)
        assert plan.choice_index is None or plan.choice == plan.table[plan.choice_index]
        assert from_json(Plan, plan.to_json(), source="plan.json").to_json() == plan.to_json()


@given(st.sampled_from(places(PROFILE)), odd, hows)
@examples(120)
def test_a_profile_file_that_was_spoiled_is_refused_or_plans(path: tuple[Any, ...], new: Any, how: str) -> None:
    with tried("profile files: one value altered"):
        profile = from_json(Profile, json.dumps(altered(PROFILE, path, new, how)), source="profile.json")
        job = make_job()
        plan = make_plan(profile, job, fit(profile, job), mitigation=())
        json.loads(plan.to_json(), parse_constant=lambda name: pytest.fail(name))


@given(st.integers(0, len(json.dumps(PLAN))), st.binary(max_size=3))
@examples(100)
def test_a_plan_file_that_was_cut_or_overwritten_is_refused_or_read(place: int, garbage: bytes) -> None:
    with tried("plan files: cut or overwritten"):
        whole = json.dumps(PLAN).encode()
        for content in (whole[:place], whole[:place] + garbage + whole[place + len(garbage) :]):
            try:
                from_json(Plan, content, source="plan.json")
            except ValueError as error:
                assert "plan" in str(error)
