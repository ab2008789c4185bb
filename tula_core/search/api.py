"""`make_plan`: a profile, a job and a predictor become a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tula_core.job import Job, Target
from tula_core.mitigations import Packages
from tula_core.models.cost import has_price, hourly_price
from tula_core.models.learning.points import metric_scale
from tula_core.progress import Event, Listener, silent
from tula_core.records import Candidate, Plan, PlanProbe, Profile, Row
from tula_core.search import words
from tula_core.search.comparison import Comparison
from tula_core.search.constraints import (
    Judged,
    Limits,
    accuracy_slack,
    check_request,
    judge,
    memory_limit,
)
from tula_core.search.forecaster import Forecaster, Forecasting
from tula_core.search.forecasts import Forecasts
from tula_core.search.methods import forecast_growing, left_out_notes, method_notes
from tula_core.search.notes import data_notes, norm_warning, stage_words, unlearnt
from tula_core.search.objective import Decision, decide
from tula_core.search.odds import EVEN_CHANCE
from tula_core.search.reasons import explain
from tula_core.search.space import candidates, key, reference_key
from tula_core.search.spending import Spending
from tula_core.search.study import Searched, Task, search, write_journal
from tula_core.seeding import derive_seed

_LEAST_USD = 1e-9
"""What runs cost less than this is no axis to compare them by."""


def make_plan(
    profile: Profile,
    job: Job,
    predictor: Forecaster,
    *,
    mitigation: tuple[str, ...] | Packages,
    cached: bool = False,
    storage: Path | None = None,
    listener: Listener = silent,
) -> Plan:
    """Search the candidates of a job and return the plan; the same arguments give the same plan.

    Parameters
    ----------
    job
        With every recipe field set (`Job.resolved`); ``predictor`` is fitted to the profile and this job.
    mitigation
        What every candidate trains with, by name, or the packages to choose from.
    cached
        Whether the profile was measured earlier and not for this plan.
    storage
        Where the Optuna study is kept, a journal file or a folder for it; None keeps it in memory only.

    Raises
    ------
    InputError
        A limit or an objective that cannot be checked: a budget without a price, energy that is not known.
    """
    check_request(job, profile)
    packages = mitigation if isinstance(mitigation, Packages) else Packages.alone(mitigation)
    if packages.several and not _judgeable(predictor, job):
        packages = packages.unaided
    grid = candidates(profile, job, predictor, packages)
    listener(Event(stage="search", message=f"comparing {len(grid)} candidates", fraction=0.0))
    first = _always_searched(grid, profile, job)
    smallest = min(grid, key=lambda candidate: candidate.global_batch)
    limits = _limits(profile, job, predictor, [*first, smallest], packages)
    searched = search(_task(profile, predictor, limits, grid, first))
    if storage is not None:
        write_journal(searched.study, storage, listener)
    judged = searched.judged
    decision = decide(judged, job, limits.expense, profile.facts.higher_is_better)
    listener(_done(judged))
    chosen = None if decision.choice is None else judged[decision.choice].row
    comparison = Comparison.of(judged, decision, packages, job.recipe.batch_size)
    spending = Spending.of(chosen, job, predictor)
    return Plan(
        job=job,
        hardware=_plain(profile.hardware),
        predictor=predictor.label,
        probe=_probe(profile, job, cached),
        table=tuple(item.row for item in judged),
        pareto=decision.front,
        knee=decision.knee,
        choice_index=decision.choice,
        reason=explain(judged, decision, job, profile.hardware)
        + _of_target(judged, decision, limits)
        + _of_choice(judged, decision, profile)
        + _of_blindness(judged, profile, job, listener)
        + ("" if comparison is None else comparison.reason(profile))
        + spending.reason(),
        assumptions=_assumptions(predictor, searched, limits, profile, (grid, packages)),
        facts=_facts(profile, job, decision, len(judged), len(grid))
        | spending.facts()
        | {"expected_curve": _expected_curve(predictor, chosen)}
        | ({} if comparison is None else {"methods": comparison.facts()}),
    )


def _judgeable(predictor: Forecaster, job: Job) -> bool:
    """Return whether anything is known of accuracy, so that methods can be told apart."""
    alone = Candidate(nodes=1, processes_per_node=1, local_batch=job.recipe.batch_size)
    return predictor.forecast([alone])[0]["accuracy"].value is not None


def _task(
    profile: Profile, predictor: Forecaster, limits: Limits, grid: Sequence[Candidate], first: Sequence[Candidate]
) -> Task:
    job = limits.job

    def evaluate(chosen: Sequence[Candidate], by: Forecasting = predictor) -> list[Judged]:
        return [judge(row, limits) for row in _forecast(by, chosen, job.recipe.batch_size)]

    task = Task(
        name=f"{job.title} {job.digest} {profile.fingerprint[:16]}",
        grid=grid,
        first=first,
        evaluate=evaluate,
        expense=limits.expense,
        seed=derive_seed(job.seed, "search") % 2**32,
    )
    if len(grid) <= task.small_grid:
        return task
    forecasts = Forecasts(predictor, grid)
    looked_up = partial(evaluate, by=forecasts)
    return dataclasses.replace(
        task,
        evaluate=looked_up,
        near_front=lambda: forecasts.near_front(looked_up, [limits.expense, *_also_weighed(job)]),
        front_known=forecasts.complete,
    )


def _also_weighed(job: Job) -> list[str]:
    """Return what the objective weighs beside time and expense: no front of these two shows where it is least."""
    return ["energy_j"] if "energy" in (job.objective if isinstance(job.objective, dict) else [job.objective]) else []


def _always_searched(grid: Sequence[Candidate], profile: Profile, job: Job) -> list[Candidate]:
    """Return the reference batch on one process, first, then what was measured."""
    measured = {(s.nodes, s.processes_per_node, s.local_batch, s.accumulation) for s in profile.steps}
    reference = reference_key(grid, job.recipe.batch_size)
    others = [
        c
        for c in grid
        if (c.nodes, c.processes_per_node, c.local_batch, c.accumulation) in measured
        and c.power_limit_w is None
        and key(c) != reference
    ]
    return [next(c for c in grid if key(c) == reference), *others]


def _forecast(predictor: Forecasting, chosen: Sequence[Candidate], reference_batch: int) -> list[Row]:
    rows = forecast_growing(predictor, chosen, reference_batch) if chosen else []
    assert [row.candidate for row in rows] == list(chosen), "the predictor has to answer every candidate, in order"
    return rows


def _limits(
    profile: Profile, job: Job, predictor: Forecaster, first: Sequence[Candidate], packages: Packages
) -> Limits:
    rows = _forecast(predictor, first, job.recipe.batch_size)
    reference = rows[0]["accuracy"].value
    better = profile.facts.higher_is_better
    trusted = (packages.small, packages.pilots) if packages.several else None
    chance = _best_chance(job, predictor, [c for c in first if trusted is None or c.mitigation in trusted])
    settled = job.target is not None and (chance is None or chance >= EVEN_CHANCE)
    worst, keeping = None, None
    if reference is not None and not settled and job.constraints.min_accuracy is None:
        slack = accuracy_slack(profile, reference)
        worst = reference + (-1 if better else 1) * slack
        if packages.several:
            keeping = _keeping(predictor, first[0], slack)
    return Limits(
        job=job,
        hardware=profile.hardware,
        train_samples=profile.facts.train_samples,
        expense="cost_usd" if any((row["cost_usd"].value or 0.0) > _LEAST_USD for row in rows) else "node_hours",
        higher_is_better=better,
        worst_accuracy=worst,
        reach_probability=predictor.reach_probability,
        best_chance=chance,
        smallest_batch=profile.facts.smallest_batch,
        keeping_probability=keeping,
    )


def _keeping(predictor: Forecaster, reference: Candidate, slack: float) -> Callable[[Candidate], float | None]:
    """Return the chance of a larger batch to be hardly worse than the reference; a smaller one is taken as it is."""

    def chance(candidate: Candidate) -> float | None:
        if candidate.global_batch <= reference.global_batch:
            return None
        return predictor.keeping_probability(candidate, reference, slack)

    return chance


def _best_chance(job: Job, predictor: Forecaster, grid: Sequence[Candidate]) -> float | None:
    """Return the best chance of the target among the reference, the measured and the smallest batch."""
    if job.target is None:
        return None
    chances = [predictor.reach_probability(candidate) for candidate in grid]
    return max((chance for chance in chances if chance is not None), default=None)


def _of_target(judged: Sequence[Judged], decision: Decision, limits: Limits) -> str:
    """Return a sentence with the chance of the target, a warning where nothing is expected to reach it."""
    target, epochs = limits.job.target, limits.job.recipe.epochs
    if not isinstance(target, Target) or limits.best_chance is None:
        return ""
    goal = f"the target {target.metric} {target.value:g}"
    if not limits.target_in_reach:
        return (
            f" Beware: {goal} is not expected within {epochs} epochs (chance at best {limits.best_chance:.2f}); the "
            f"forecast is for all {epochs} epochs. Raise recipe.epochs, or probe.seconds for a surer forecast."
        )
    chance = None if decision.choice is None else limits.reach_probability(judged[decision.choice].row.candidate)
    return (
        "" if chance is None else f" It reaches {goal} within {epochs} epochs with a chance of {words.chance(chance)}."
    )


def _of_choice(judged: Sequence[Judged], decision: Decision, profile: Profile) -> str:
    if decision.choice is None:
        return ""
    candidate = judged[decision.choice].row.candidate
    return stage_words(candidate) + norm_warning(candidate, profile.facts)


def _of_blindness(judged: Sequence[Judged], profile: Profile, job: Job, listener: Listener) -> str:
    """Return a warning where nothing is known of accuracy, and say it aloud."""
    if any(item.row["accuracy"].value is not None for item in judged):
        return ""
    warning = unlearnt(profile, job)
    listener(Event(stage="search", message=warning, level="warning"))
    return f" Beware: {warning}"


def _done(judged: Sequence[Judged]) -> Event:
    feasible = sum(item.row.feasible for item in judged)
    return Event(stage="search", message=f"{feasible} of {len(judged)} candidates are feasible", fraction=1.0)


def _assumptions(
    predictor: Forecaster,
    searched: Searched,
    limits: Limits,
    profile: Profile,
    looked_at: tuple[Sequence[Candidate], Packages],
) -> tuple[str, ...]:
    grid, packages = looked_at
    rows = [item.row for item in searched.judged]
    notes = _search_notes(searched, len(grid)) + _limit_notes(limits, profile)
    notes += left_out_notes(packages, grid, limits.job.recipe.batch_size)
    if packages.blind:
        notes.append(
            f"Nothing is known of accuracy here, so that above the reference batch {packages.names[0]} alone is "
            "offered: it kept most of a small batch's accuracy elsewhere."
        )
    for names in dict.fromkeys(row.candidate.mitigation for row in rows):
        notes += method_notes(names, limits.job.mitigation_options, packages)
    notes += data_notes(rows, limits.job, profile.facts) + _profile_notes(profile)
    return tuple(dict.fromkeys([*profile.facts.notes, *predictor.assumptions, *notes]))


def _search_notes(searched: Searched, grid: int) -> list[str]:
    notes = []
    if len(searched.judged) < grid:
        notes.append(
            f"{len(searched.judged)} of {grid} candidates were looked at: those near the best in time "
            "and expense, and what a genetic search came by."
        )
    if searched.cut_short:
        notes.append("The search was stopped by its time limit, so that another machine may look at more candidates.")
    return notes


def _why_no_cost(job: Job) -> str:
    cluster = job.cluster
    if not has_price(cluster):
        return "Without a price"
    if cluster.electricity_usd_per_kwh and cluster.power_watts is None:
        return "With a price of electricity and unknown energy"
    return "With prices at which a run costs nothing"


def _limit_notes(limits: Limits, profile: Profile) -> list[str]:
    job, notes = limits.job, []
    if limits.expense == "node_hours":
        notes.append(f"{_why_no_cost(job)}, candidates are compared by node time instead of cost.")
    limit = memory_limit(job, profile.hardware, job.cluster.processes_per_node)
    if limit is None:
        notes.append("The memory of the machine is unknown, so no limit was applied.")
    else:
        notes.append(f"A process may fill {words.memory(limit.size_bytes)}: {limit.source}.")
    if limits.keeping_probability is not None:
        notes.append(
            "Above the reference batch that rule has to be kept with the chance of constraints.confidence, with both "
            "batches forecast by the same draws."
        )
    if limits.worst_accuracy is not None:
        target = "There is no target" if job.target is None else "No target is within reach"
        notes.append(
            f"{target}, so {profile.facts.metric} worse than {limits.worst_accuracy:.4g} is "
            "ruled out: that of the reference batch on one process, with a margin of a hundredth. "
            "constraints.min_accuracy replaces this rule."
        )
    elif job.target is None and job.constraints.min_accuracy is None:
        notes.append("The accuracy of the reference batch is unknown, so no batch size was ruled out for its accuracy.")
    return notes


def _profile_notes(profile: Profile) -> list[str]:
    why = f"Measuring ended after {words.duration(profile.probe.used_s)}: {profile.probe.stopped_because}."
    return [why, *(f"While measuring: {warning}" for warning in profile.warnings)]


def _probe(profile: Profile, job: Job, cached: bool) -> PlanProbe:
    price = hourly_price(job.cluster)
    cost = None if price is None else price * profile.probe.used_s / 3600
    use = profile.probe
    return PlanProbe(seconds=use.used_s, cost_usd=cost, cached=cached, stopped_because=use.stopped_because)


def _facts(profile: Profile, job: Job, decision: Decision, evaluated: int, grid: int) -> dict[str, Any]:
    return {
        "workload": profile.facts.name,
        "profile_fingerprint": profile.fingerprint,
        "train_samples": profile.facts.train_samples,
        "eval_samples": profile.facts.eval_samples,
        "sample_shape": list(profile.facts.sample_shape),
        "data_sample": {role: dataclasses.asdict(sample) for role, sample in profile.facts.data_sample.items()},
        "metric": profile.facts.metric,
        "higher_is_better": profile.facts.higher_is_better,
        "metric_best": metric_scale(profile).ceiling,
        "parameters": profile.facts.parameters,
        "reference_batch": job.recipe.batch_size,
        "kneedle": decision.kneedle,
        "nearest": decision.nearest,
        "evaluated": evaluated,
        "grid": grid,
    }


def _expected_curve(predictor: Forecaster, chosen: Row | None) -> list[list[float]] | None:
    """Return epochs, low, value and high of the metric at the end of each epoch of the choice; None where unknown."""
    points = None if chosen is None else predictor.expected_curve(chosen.candidate)
    return None if points is None else [[point.epochs, point.low, point.value, point.high] for point in points]


def _plain(record: Any) -> dict[str, Any]:
    return {
        field.name: dict(value) if isinstance(value := getattr(record, field.name), Mapping) else value
        for field in dataclasses.fields(record)
    }
