"""How a range test shares its time, and what follows where it is refused. All pure."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

from tula_core.errors import InputError
from tula_core.job import Recipe
from tula_core.records import LearningRateTest

RATE_SHARE = 0.4  # of the worker's time that is left, where a rate is to be measured
MOST_RATE_SHARE = 0.6  # of it, and of what was kept for later workers, where less is too short for any test
FEWEST_STEPS = 16  # of a run
_GOOD_STEPS, MOST_STEPS = 256, 512  # time for more than good goes into more seeds
_FEWEST_SEEDS, _FEW_SEEDS, _MANY_SEEDS = 2, 3, 5
_RUNS_OF_ONE_SEED, _RUNS_OF_EACH = 4, 6  # that a search usually takes: a decade apart, and then finer
_RUNS_OF_FEWEST = 5  # of each seed where there are two: half a decade apart is what the time is planned for
_HELD_SHARE, _FEWEST_HELD, _MOST_HELD, _MOST_HELD_SHARE = 0.1, 200, 1000, 0.25
_EVALUATION_SHARE = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """How a test's time is shared: seeds, the seconds of a run, held-out samples, and the steps that fit a run."""

    seeds: int
    run_s: float
    held_out: int
    steps: float


def held_out_samples(samples: int) -> int:
    """Return how many of the training set's samples judge a run: a tenth, 200 to 1,000, a quarter of few.

    >>> [held_out_samples(count) for count in (60000, 5000, 1000, 100)]
    [1000, 500, 200, 25]
    """
    wanted = min(max(int(_HELD_SHARE * samples), _FEWEST_HELD), _MOST_HELD)
    return min(wanted, int(_MOST_HELD_SHARE * samples))


def runs_of(seeds: int) -> int:
    """Return for how many runs a search with so many seeds is planned; what time is left makes it finer.

    >>> [runs_of(seeds) for seeds in (2, 3, 5)]
    [14, 22, 34]
    """
    return _RUNS_OF_ONE_SEED + seeds * (_RUNS_OF_FEWEST if seeds == _FEWEST_SEEDS else _RUNS_OF_EACH)


def shares_of_runs(seconds: float, step_s: float, global_batch: int, held: int, fewest: int = FEWEST_STEPS) -> Shares:
    """Return how a test shares ``seconds``: five seeds where runs stay long, two where three are too many.

    An evaluation is taken to need as long a sample as training does, which it never does.

    Parameters
    ----------
    step_s
        Seconds of a step of ``global_batch`` samples.
    held
        The most samples to hold out.
    fewest
        Steps of a run that are worth a test.
    """
    for seeds, enough in ((_MANY_SEEDS, _GOOD_STEPS), (_FEW_SEEDS, fewest), (_FEWEST_SEEDS, 0)):
        run_s = seconds / runs_of(seeds)
        affordable = int(_EVALUATION_SHARE * run_s / step_s * global_batch)
        judged = min(held, max(affordable, _FEWEST_HELD))
        steps = max(run_s / step_s - judged / global_batch, 0.0)
        if steps >= enough:
            break
    return Shares(seeds=seeds, run_s=run_s, held_out=judged, steps=steps)


def least_test_s(step_s: float, global_batch: int, held: int, fewest: int) -> float:
    """Return the seconds below which `shares_of_runs` finds no test: two seeds and the fewest steps."""
    return runs_of(_FEWEST_SEEDS) * (fewest + min(held, _FEWEST_HELD) / global_batch) * step_s


def whole_power(steps: float) -> int:
    """Return the power of two at or below: two tests whose clocks differ a little are then of the same length.

    >>> [whole_power(steps) for steps in (0.5, 1, 40, 64)]
    [0, 1, 32, 64]
    """
    return 2 ** int(math.log2(steps)) if steps >= 1 else 0


def too_short(steps: int, fewest: int, probe_s: float) -> str:
    """Return why a test whose runs would have ``steps`` steps is refused, and would not be with ``probe_s`` seconds."""
    return f"its runs would have {steps} steps, and {fewest} are the fewest that tell. {give_probe(probe_s)}"


def give_probe(probe_s: float) -> str:
    """Return the advice to measure for ``probe_s`` seconds, rounded up, without a final full stop.

    >>> give_probe(41.2)
    'Give probe.seconds 45 or more'
    """
    return f"Give probe.seconds {5 * math.ceil(probe_s / 5)} or more"


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
