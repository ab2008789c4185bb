import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tula_core.errors import InputError
from tula_core.models.learning.schedules import SCHEDULES, annealing, schedule_factor


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1, 1]),
        ("linear", [1, 0.5, 0.25, 0]),
        ("cosine", [1, 0.5, 0.1464466, 0]),
        ("step", [1, 0.1, 0.01, 0.01]),
    ],
)
def test_known_values(schedule, expected):
    assert schedule_factor(schedule, np.array([0.0, 0.5, 0.75, 1.0])) == pytest.approx(expected)


@given(st.sampled_from(sorted(SCHEDULES)), st.floats(-1, 2), st.floats(-1, 2))
def test_every_schedule_starts_at_its_peak_and_never_rises(schedule, first, second):
    early, late = sorted((first, second))
    assert schedule_factor(schedule, 0.0) == 1.0
    assert 1.0 >= schedule_factor(schedule, early) >= schedule_factor(schedule, late) >= 0.0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_number_gives_what_an_array_gives(schedule: str) -> None:
    fractions = np.linspace(-0.1, 1.1, 97)
    one_by_one = [schedule_factor(schedule, float(fraction)) for fraction in fractions]
    assert one_by_one == pytest.approx(schedule_factor(schedule, fractions), abs=1e-14)
    assert schedule_factor(schedule, 1) == one_by_one[-1]


def test_annealing_is_what_is_gone_from_the_rate():
    assert annealing("linear", np.array([0.0, 0.3])) == pytest.approx([0.0, 0.3])


def test_unknown_schedule_and_no_number_are_refused():
    with pytest.raises(InputError, match="recipe.schedule: 'cosin' is unknown. Did you mean 'cosine'"):
        schedule_factor("cosin", 0.5)
    with pytest.raises(InputError, match="fraction"):
        schedule_factor("cosine", float("nan"))
