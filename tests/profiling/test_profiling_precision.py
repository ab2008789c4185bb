from types import SimpleNamespace

import pytest

from tula_core.profiling.precision import error_of_median, sizes_to_time


def runs(*sizes):
    return [SimpleNamespace(local_batch=size) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ((8,), [8]),
        ((8, 16, 32), [8, 16, 32]),
        ((1, 2, 4, 8, 16, 32, 64), [1, 8, 64]),
        ((8, 16, 32, 64, 128, 300), [8, 64, 300]),
    ],
)
def test_the_ends_and_the_middle_by_ratio_are_timed(sizes, chosen):
    assert [run.local_batch for run in sizes_to_time(runs(*sizes))] == chosen


def test_a_stall_in_one_round_does_not_widen_the_ratio():
    calm = [0.30, 0.31, 0.29, 0.30, 0.32, 0.28]
    assert error_of_median([*calm, 5.0]) == pytest.approx(error_of_median(calm), rel=0.6)
    assert error_of_median([0.1, 0.5, -0.4, 0.9]) > 0.2
    assert error_of_median([0.3, 0.3]) > 0.2
    assert error_of_median([0.3] * 12) >= 0.02
