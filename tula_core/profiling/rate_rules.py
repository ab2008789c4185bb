"""How a range test shares its time, and what follows where it is refused. All pure."""

from __future__ import annotations

import math
from collections.abc import Set

from tula_core.errors import InputError
from tula_core.job import Recipe
from tula_core.records import LearningRateTest

RATE_SHARE = 0.4  # of the worker's time that is left, where a rate is to be measured
FEWEST_STEPS = 16  # of a run
_GOOD_STEPS, MOST_STEPS = 256, 512  # time for more than good goes into more seeds
_FEW_SEEDS, _MANY_SEEDS = 3, 5
_RUNS_OF_ONE_SEED, _RUNS_OF_EACH = 4, 6  # that a search usually takes: a decade apart, and then finer
_HELD_SHARE, _FEWEST_HELD, _MOST_HELD, _MOST_HELD_SHARE = 0.1, 200, 1000, 0.25
_EVALUATION_SHARE = 0.25


def held_out_samples(samples: int) -> int:
    """Return how many of the training set's samples judge a run: a tenth, 200 to 1,000, a quarter of few.

    >>> [held_out_samples(count) for count in (60000, 5000, 1000, 100)]
    [1000, 500, 200, 25]
    """
    wanted = min(max(int(_HELD_SHARE * samples), _FEWEST_HELD), _MOST_HELD)
    return min(wanted, int(_MOST_HELD_SHARE * samples))


def shares_of_runs(seconds: float, step_s: float, global_batch: int, held: int) -> tuple[int, float, int, float]:
    """Return seeds, seconds of a run, held-out samples and steps that fit a run; five seeds where runs stay long.

    An evaluation is taken to need as long a sample as training does, which it never does.
    """
    seeds, run_s, steps = 0, 0.0, 0.0
    for seeds in (_MANY_SEEDS, _FEW_SEEDS):
        run_s = seconds / (_RUNS_OF_ONE_SEED + seeds * _RUNS_OF_EACH)
        affordable = int(_EVALUATION_SHARE * run_s / step_s * global_batch)
        judged = min(held, max(affordable, _FEWEST_HELD))
        steps = run_s / step_s - judged / global_batch
        if steps >= _GOOD_STEPS:
            break
    return seeds, run_s, judged, max(steps, 0.0)


def whole_power(steps: float) -> int:
    """Return the power of two at or below: two tests whose clocks differ a little are then of the same length.

    >>> [whole_power(steps) for steps in (0.5, 1, 40, 64)]
    [0, 1, 32, 64]
    """
    return 2 ** int(math.log2(steps)) if steps >= 1 else 0


def too_short(steps: int, fewest: int, times: float) -> str:
    """Return why a test whose runs would have ``steps`` steps is refused, and would not in ``times`` the time."""
    return (
        f"its runs would have {steps} steps, and {fewest} are the fewest that tell. Give probe.seconds "
        f"{math.ceil(times)} times as much"
    )


def refused_test(recipe: Recipe, why: str) -> LearningRateTest:
    """Return the record of a test that could not be made."""
    return LearningRateTest(
        used=recipe.learning_rate,
        low=None,
        high=None,
        refused=why,
        batch_size=recipe.batch_size,
        seeds=0,
        steps=0,
        held_out=0,
        seconds=0.0,
    )


def require_rate(stated: Set[str], refused: str) -> None:
    """Raise where a test is refused and ``learning_rate`` is not among the ``stated`` fields of the recipe.

    Raises
    ------
    InputError
        Names the field and the remedy.
    """
    if refused and "learning_rate" not in stated:
        raise InputError(
            f"recipe.learning_rate: auto has found none, and the workload states none: {refused.rstrip('.')}. "
            "Or write a number."
        )
