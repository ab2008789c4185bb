"""The Optuna study: every candidate of a small grid exactly once, a genetic search over a large one."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
from optuna.samplers import BruteForceSampler, NSGAIISampler
from optuna.trial import TrialState

from tula_core.progress import Event, Listener
from tula_core.records import Candidate
from tula_core.search.constraints import LIMIT_KEYS, Judged
from tula_core.search.journal import replace_study
from tula_core.search.pareto import pareto_front
from tula_core.search.places import Places
from tula_core.search.space import key

SMALL_GRID = 512
"""Up to this many candidates the grid is searched completely."""
TRIALS_BEYOND = 1000
"""Trials of a larger grid whose front is not known beforehand."""
TRIALS_AROUND = 200
"""Trials of a larger grid around its front, where that is known."""
POPULATION = 50
TIME_LIMIT_S = 20.0
JOURNAL_NAME = "search.journal"

Evaluate = Callable[[Sequence[Candidate]], list[Judged]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is searched.

    Attributes
    ----------
    name
        Of the study; a study of the same name in the journal is replaced.
    grid
        All candidates, in the order of the table.
    first
        Candidates that are looked at whatever the sampler does.
    evaluate
        Forecasts and judges candidates, in order.
    near_front
        Judges the candidates of a large grid that are worth a look whatever the sampler finds; by default none.
    front_known
        Whether these hold the front of the whole grid: where one of them keeps every limit, the sampler then makes
        ``TRIALS_AROUND`` trials at most.
    expense
        The second objective's name.
    seed
        Seed of the sampler, below 2^32.
    small_grid
        Up to this many candidates every one is tried; above, ``trials_beyond`` trials are made.
    time_limit_s
        For the sampling; what is under way is finished.
    """

    name: str
    grid: Sequence[Candidate]
    first: Sequence[Candidate]
    evaluate: Evaluate
    expense: str
    seed: int
    near_front: Callable[[], list[Judged]] = list
    front_known: bool = False
    small_grid: int = SMALL_GRID
    trials_beyond: int = TRIALS_BEYOND
    time_limit_s: float = TIME_LIMIT_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """Judged candidates in the order of the table, and whether the time limit cut the search short."""

    judged: tuple[Judged, ...]
    cut_short: bool
    study: optuna.Study


class _UnrankableError(Exception):
    """A candidate without a finite time and expense; its trial is recorded as failed."""


def search(task: Task) -> Searched:
    """Look at the candidates and record each as a trial of a study held in memory.

    Raises nothing of its own; an exception of ``task.evaluate`` is passed on.
    """
    with _quiet():
        return _every_point(task) if len(task.grid) <= task.small_grid else _genetic(task)


def write_journal(study: optuna.Study, path: Path, listener: Listener) -> None:
    """Copy a study into a journal file that optuna-dashboard opens; a failure to write is only reported.

    The study runs in memory first: a trial then is one entry of the journal and not a dozen, each with its own sync.

    Parameters
    ----------
    path
        The journal, or a folder in which it is called ``search.journal``.
    """
    try:
        with _quiet():
            replace_study(study, path / JOURNAL_NAME if path.is_dir() else path)
    except (OSError, ValueError, optuna.exceptions.OptunaError) as error:
        message = f"The search could not be recorded in {str(path)!r} ({error}); the plan is complete without it."
        listener(Event(stage="search", message=message, level="warning"))


def _every_point(task: Task) -> Searched:
    judged = task.evaluate(task.grid)
    places = Places(task.grid)
    study = _new_study(task, BruteForceSampler(seed=task.seed))

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        members = places.suggest(trial)
        if not members:
            raise optuna.TrialPruned
        item = judged[members[trial.suggest_int("batch_option", 0, len(members) - 1)]]
        _annotate(trial, item)
        return _values(item, task.expense)

    count = len(task.grid) + places.empty
    study.optimize(objective, n_trials=count, timeout=task.time_limit_s, catch=(_UnrankableError,))
    # The forecasts were made in one call up front, so the table is complete even where the study is not.
    return Searched(judged=tuple(judged), cut_short=False, study=study)


def _genetic(task: Task) -> Searched:
    places = Places(task.grid)
    study = _new_study(task, NSGAIISampler(population_size=POPULATION, seed=task.seed))
    seen = {key(item.row.candidate): item for item in task.near_front()}
    first = [*task.first, *_front(list(seen.values()), task)]
    for candidate in first:
        study.enqueue_trial(places.parameters(candidate))
    settled = task.front_known and any(item.row.feasible for item in seen.values())
    most = min(task.trials_beyond, TRIALS_AROUND) if settled else task.trials_beyond
    started = time.monotonic()
    trials, cut_short = 0, False
    while trials < most + len(first) and not cut_short:
        asked = [study.ask() for _ in range(POPULATION)]
        indices = []
        for trial in asked:
            # Where a layout has no candidate with the methods, any of its candidates takes their place.
            members = places.suggest(trial) or places.of_layout(trial.params["layout"])
            option = trial.suggest_int("batch_option", 0, places.longest - 1)
            indices.append(members[min(option, len(members) - 1)])
        fresh = [task.grid[index] for index in dict.fromkeys(indices) if key(task.grid[index]) not in seen]
        seen |= {key(item.row.candidate): item for item in task.evaluate(fresh)}
        for trial, index in zip(asked, indices, strict=True):
            _tell(study, trial, seen[key(task.grid[index])], task.expense)
        trials += len(asked)
        cut_short = time.monotonic() - started > task.time_limit_s
    missing = [candidate for candidate in task.first if key(candidate) not in seen]
    seen |= {key(item.row.candidate): item for item in task.evaluate(missing)}
    return Searched(judged=tuple(seen[place] for place in sorted(seen)), cut_short=cut_short, study=study)


def _front(judged: Sequence[Judged], task: Task) -> list[Candidate]:
    """Return the front of judged candidates that keep every limit, without those that are looked at first anyway.

    At most one population of them, evenly taken: they are what the sampler begins with.
    """
    rows = [item.row for item in judged if item.row.feasible]
    if not rows:
        return []
    times, spent = (np.array([row[name].value for row in rows]) for name in ("time_to_train_s", task.expense))
    front = pareto_front(times, spent)
    thinned = np.unique(np.linspace(0, len(front) - 1, min(len(front), POPULATION)).round().astype(int))
    known = {key(candidate) for candidate in task.first}
    found = [rows[place].candidate for place in front[thinned]]
    return [candidate for candidate in found if key(candidate) not in known]


def _new_study(task: Task, sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    study = optuna.create_study(study_name=task.name, sampler=sampler, directions=["minimize", "minimize"])
    study.set_metric_names(["time_to_train_s", task.expense])
    return study


def _annotate(trial: optuna.Trial, item: Judged) -> None:
    c = item.row.candidate
    trial.set_user_attr("local_batch", c.local_batch)
    trial.set_user_attr("accumulation", c.accumulation)
    trial.set_user_attr("global_batch", c.global_batch)
    trial.set_user_attr("mitigation", list(c.mitigation))
    if c.precision is not None:
        trial.set_user_attr("precision", c.precision)
    if c.power_limit_w is not None:
        trial.set_user_attr("power_limit_w", c.power_limit_w)
    if item.row.infeasible_because is not None:
        trial.set_user_attr("infeasible_because", item.row.infeasible_because)
    excess = {violation.key: violation.excess for violation in item.violations}
    for name in LIMIT_KEYS:
        amount = excess.get(name, 0.0)
        # A check that could not be made counts as missed by the whole limit.
        trial.set_constraint(name, 1.0 if amount is None else amount)


def _values(item: Judged, expense: str) -> tuple[float, float]:
    time_s, spent = item.row["time_to_train_s"].value, item.row[expense].value
    if time_s is None or spent is None:
        raise _UnrankableError(item.row.infeasible_because)
    return time_s, spent


def _tell(study: optuna.Study, trial: optuna.Trial, item: Judged, expense: str) -> None:
    _annotate(trial, item)
    try:
        study.tell(trial, _values(item, expense))
    except _UnrankableError:
        study.tell(trial, state=TrialState.FAIL)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
