"""Where a step is slow, two sizes are looked at all the same: one alone does not tell what a sample takes."""

import pytest

from tula_core.profiling.scouts import Scouts, with_quarter

SIZES, SMALLER = [32, 64, 128], [2, 4, 8, 16]


def scouted(step_s, size=2):
    return Scouts(peaks=[(size, 10)], seconds=[2 * step_s, step_s])


@pytest.mark.parametrize(
    ("step_s", "expected"),
    [
        (0.001, SIZES),  # there is time for all
        (0.045, [8, *SIZES]),  # for eight steps of 32, not for 64 too
        (0.2, SIZES),  # for the first alone
    ],
)
def test_a_quarter_comes_first_where_the_second_size_would_take_too_long(step_s, expected):
    assert with_quarter(SIZES, SMALLER, scouted(step_s), 25.0) == expected


def test_nothing_smaller_than_the_network_trains_on_is_looked_at():
    assert with_quarter([4, 8], [2], scouted(1.0), 25.0) == [4, 8]
    assert with_quarter([4, 8], [], Scouts(), 25.0) == [4, 8]


def test_one_size_alone_has_no_second():
    assert with_quarter([32], SMALLER, scouted(0.045), 25.0) == [32]
