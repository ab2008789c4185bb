"""`fit` and `Predictor`: all models of one job together, from candidates to rows.

How corrections learnt from history enter, each multiplying by exp(log_bias) and widening by log_sd in quadrature:

- ``step_time_s``: the step time, and through it every total.
- ``epochs``: the epochs to a target, rounded up to whole ones and at most the cap; steps and totals follow. Without a
  target the epochs are the recipe's and nothing is corrected.
- ``memory_bytes``: memory, and through it `Predictor.max_local_batch`.
- ``accuracy``: the metric where training stops, never beyond its ceiling.
- ``time_to_train_s``: where there is one it multiplies the uncorrected total, instead of the two corrections above
  being passed on to it; node-hours, cost and energy follow the total.
- ``steps``, ``node_hours``, ``cost_usd``, ``energy_j``: not read, they follow from the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.models.assumptions import assumptions
from tula_core.models.checking import check_profile
from tula_core.models.forecasting import (
    Band,
    Models,
    forecast_bands,
    learning_draws,
    memory_band,
    run_interruptions,
    wanted_epochs,
)
from tula_core.models.learning.fit import fit_learning
from tula_core.models.memory import HostRoom, fit_host_memory, fit_memory, state_bytes
from tula_core.models.plausibility import credible
from tula_core.models.power.node import fit_node_power
from tula_core.models.precision_set import Precisions, fit_precisions
from tula_core.models.stages.bands import staged_bands, staged_learning
from tula_core.models.stages.check import check_stages, is_staged, layouts_of
from tula_core.models.stages.walk import walk
from tula_core.models.step.communication import fit_links
from tula_core.models.step.fit import fit_step_time
from tula_core.models.step.methods import UNNOTICED
from tula_core.models.step.time import Shapes
from tula_core.models.totals import fit_overheads
from tula_core.records.candidate import QUANTITIES, UNKNOWN, Candidate, Interval, Row, Stage
from tula_core.records.corrections import BUILTIN, Corrections
from tula_core.records.mitigation import MitigationEffect
from tula_core.records.profile import Profile

_CHUNK = 4096  # candidates at once: bounds the memory that draws take
_WHOLE = frozenset({"epochs", "steps", "memory_bytes"})


class Predictor:
    """Forecasts candidates of one job; made by `fit`. The same input always gives the same rows.

    Parameters
    ----------
    models
        The fitted models.
    assumptions
        What they take for granted, in sentences.
    precisions
        The same models in the other precisions that are considered.
    host
        What the processes of a candidate may hold of their host.
    """

    def __init__(self, models: Models, assumptions: tuple[str, ...], precisions: Precisions, host: HostRoom) -> None:
        self._models = models
        self._assumptions = assumptions
        self._precisions = precisions
        self._host = host
        self._reach: dict[tuple[int, tuple[str, ...], tuple[Stage, ...] | None], float] = {}

    @property
    def models(self) -> Models:
        """The fitted models."""
        return self._models

    @property
    def host(self) -> HostRoom:
        """What the processes of a candidate may hold of their host."""
        return self._host

    @property
    def label(self) -> str:
        """The version that a plan and a run carry."""
        return self._models.corrections.label

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Every assumption behind the rows, as sentences."""
        return self._assumptions

    @property
    def critical_batch_samples(self) -> float | None:
        """B_crit of the fitted learning curve, None where no pilot could be used."""
        return None if self._models.learning is None else self._models.learning.critical_batch

    def forecast(self, candidates: Sequence[Candidate]) -> list[Row]:
        """Return one row for each candidate, in their order.

        A row is infeasible only where no limit of the job's is needed to say so: a global batch above the training
        set, a local batch that ran out of memory when measured, a power limit where there is nothing to limit, or a
        precision that failed when measured. What makes no sense then is unknown. Of a staged candidate each stage
        counts: it is measured where all of them are.

        Raises
        ------
        InputError
            A candidate's nodes, processes, local batch or accumulation is not a positive whole number, or its stages
            do not lead from the first sample to its own layout.
        """
        for candidate in candidates:
            _check_candidate(candidate)
        rows: list[Row] = []
        for start in range(0, len(candidates), _CHUNK):
            rows += self._rows(candidates[start : start + _CHUNK])
        return rows

    def _rows(self, candidates: Sequence[Candidate]) -> list[Row]:
        """Return rows in order, those of one precision forecast together."""
        rows: dict[int, Row] = {}
        for precision in dict.fromkeys(candidate.precision for candidate in candidates):
            places = [place for place, candidate in enumerate(candidates) if candidate.precision == precision]
            members = [candidates[place] for place in places]
            rows |= zip(places, self._rows_in(precision, members), strict=True)
        return [rows[place] for place in range(len(candidates))]

    def reach_probability(self, candidate: Candidate) -> float | None:
        """Return the chance that training reaches the target within the cap, None where there is no way to tell."""
        models, batch = self._models, candidate.global_batch
        if models.target is None or models.curve is None or batch > models.facts.train_samples:
            return None
        key = (batch, candidate.mitigation, candidate.stages)
        if key not in self._reach:
            acting = models.acting([candidate.mitigation])
            if is_staged(candidate):
                course = walk(candidate.stages or (), models.facts.train_samples, models.job.recipe.epochs)
                learning = staged_learning(models, course, acting)
            else:
                learning = learning_draws(models, np.array([float(batch)]), acting)
            assert learning is not None
            inside = wanted_epochs(models, learning.epochs) <= models.job.recipe.epochs
            self._reach[key] = float(np.mean(learning.reached & inside))
        return self._reach[key]

    def on_spot(self, candidate: Candidate) -> Row | None:
        """Return the forecast of a candidate on spot nodes, interruptions counted.

        None where the job has no spot price beside a firm one, or says nothing of how often a node is taken away.
        """
        cluster = self._models.job.cluster
        firm, spot = cluster.price_per_node_hour, cluster.spot_price_per_node_hour
        if firm is None or spot is None or cluster.spot_interruptions_per_hour is None:
            return None
        there = cluster.model_copy(update={"price_per_node_hour": None})
        job = self._models.job.model_copy(update={"cluster": there})
        models = replace(self._models, job=job)
        return Predictor(models, self._assumptions, self._precisions, self._host).forecast([candidate])[0]

    def max_local_batch(
        self, nodes: int, processes_per_node: int, memory_bytes_limit: float, precision: str | None = None
    ) -> int | None:
        """Return the largest local batch whose upper memory bound fits, with every smaller power of two fitting too.

        At most the training set's share of a process, less than any size that ran out of memory, and at most the
        largest measured size where readings do not grow. 0 where not even one sample fits; None where memory is
        unknown.
        """
        models = self._precisions.models(self._models, precision)
        if models.memory is None:
            return None
        processes = nodes * processes_per_node
        most = models.facts.train_samples // processes
        failed = models.memory.failed_at(processes_per_node, nodes)
        most = most if failed is None else min(most, failed - 1)
        if not models.memory.extrapolates():
            most = min(most, models.memory.largest_measured)

        def fits(local_batch: int) -> bool:
            band = memory_band(models, np.array([float(local_batch)]), np.array([float(processes)]))
            return band is not None and float(band.high[0]) <= memory_bytes_limit

        return _largest(fits, most)

    def _rows_in(self, precision: str | None, candidates: Sequence[Candidate]) -> list[Row]:
        models = self._precisions.models(self._models, precision)
        reasons = [self._impossible(candidate) for candidate in candidates]
        possible = [candidate for candidate, reason in zip(candidates, reasons, strict=True) if reason is None]
        forecasts = iter(_forecasts(models, possible))
        measured = _measured(models, candidates)
        rows = []
        for candidate, reason, timed in zip(candidates, reasons, measured, strict=True):
            forecast = dict.fromkeys(QUANTITIES, UNKNOWN) if reason is not None else next(forecasts)
            because = reason or self._failed(candidate) or self._never_ends(candidate)
            because = because or self._host.crowded(candidate, forecast["memory_bytes"].high)
            rows.append(
                Row(
                    candidate=candidate,
                    feasible=because is None,
                    infeasible_because=because,
                    measured=timed and reason is None,
                    forecast=forecast,
                )
            )
        return rows

    def _impossible(self, candidate: Candidate) -> str | None:
        """Return why nothing can be forecast for a candidate."""
        samples = self._models.facts.train_samples
        if candidate.global_batch > samples:
            return f"global batch {candidate.global_batch} is above the {samples} training samples"
        if candidate.power_limit_w is not None and self._models.power.top_w is None:
            return "a power limit is not forecast where no accelerator's limit is known"
        return self._precisions.impossible(candidate)

    def _never_ends(self, candidate: Candidate) -> str | None:
        """Return why interruptions would not let a candidate end."""
        stops = run_interruptions(self._models, Shapes.of(layouts_of(candidate)))
        if stops is None or not stops.hopeless.any():
            return None
        per_hour = self._models.job.cluster.spot_interruptions_per_hour
        return (
            f"with {per_hour:g} interruptions an hour of each of {candidate.nodes} spot nodes hardly any start and "
            "step to the next checkpoint are left alone, so that the run would not end"
        )

    def _failed(self, candidate: Candidate) -> str | None:
        """Return why a candidate that can be forecast cannot run."""
        if self._models.memory is None:
            return None
        for part in layouts_of(candidate):
            failed = self._models.memory.failed_at(part.processes_per_node, part.nodes)
            if failed is not None and part.local_batch >= failed:
                return f"local batch {failed} ran out of memory when it was measured"
        return None


def fit(
    profile: Profile,
    job: Job,
    corrections: Corrections = BUILTIN,
    effects: Mapping[str, MitigationEffect] | None = None,
    step_cost: float = 1.0,
) -> Predictor:
    """Return the predictor of one job on the hardware of its profile.

    Parameters
    ----------
    profile
        What was measured; one timed configuration is enough.
    job
        Resolved: every recipe field set and the target filled in.
    corrections
        What history taught, see the module's text.
    effects
        What is known of methods against lost accuracy that the pilots did not use, by their names; a candidate's
        method that is not among them is taken to act as it did in the pilots.
    step_cost
        Computation of a step with the methods of the job over that of a plain one, which alone was timed.

    Raises
    ------
    InputError
        A measurement is not finite, negative or otherwise impossible; the message names the field.
    """
    check_profile(profile)
    device, facts = profile.hardware.device, profile.facts
    links = fit_links(profile.communication, device=device, link_gbps=job.cluster.link_gbps)
    state = state_bytes(facts, job.recipe)
    memory = fit_memory(
        profile.memory,
        gradient_bytes=facts.gradient_bytes,
        state=state,
        sample_bytes=facts.sample_bytes,
        content=profile.content,
    )
    learning = fit_learning(profile, reference_batch=job.recipe.batch_size)
    believed, timed = credible(profile, job)
    step = fit_step_time(
        believed.steps,
        links,
        device=device,
        gradient_bytes=facts.gradient_bytes,
        loader_workers=job.recipe.loader_workers,
    )
    step = step if timed else replace(step, timed=False)
    models = Models(
        job=job,
        facts=facts,
        step=step,
        memory=memory,
        learning=learning,
        overheads=fit_overheads(believed),
        power=fit_node_power(profile.power, believed.steps, job.cluster),
        corrections=corrections,
        effects=effects or {},
        step_cost=step_cost,
    )
    precisions = fit_precisions(believed, job, step, memory, state)
    loader = fit_host_memory(profile.host, facts, job.recipe, device=device)
    host = HostRoom(model=loader, memory_bytes=profile.hardware.memory_bytes, on_cpu=device == "cpu")
    said = (
        *assumptions(profile, job, links, memory, models.curve),
        *host.assumptions(job.recipe.batch_size),
        *precisions.assumptions(),
    )
    return Predictor(models, said, precisions, host)


def _forecasts(models: Models, candidates: Sequence[Candidate]) -> list[dict[str, Interval]]:
    """Return the intervals of each candidate, those in one stage forecast together."""
    plain = [candidate for candidate in candidates if not is_staged(candidate)]
    together = iter(_intervals(_bands(models, plain), len(plain)) if plain else [])
    return [_staged(models, candidate) if is_staged(candidate) else next(together) for candidate in candidates]


def _staged(models: Models, candidate: Candidate) -> dict[str, Interval]:
    acting = models.acting([candidate.mitigation])
    return _intervals(staged_bands(models, candidate.stages or (), candidate.power_limit_w, acting), 1)[0]


def _measured(models: Models, candidates: Sequence[Candidate]) -> list[bool]:
    """Return where the very step was timed, that of every stage; none where methods make it another step."""
    if abs(models.step_cost - 1.0) > UNNOTICED:
        return [False] * len(candidates)
    parts = [layouts_of(candidate) for candidate in candidates]
    timed = iter(models.step.is_measured(Shapes.of([part for found in parts for part in found])).tolist())
    return [all([next(timed) for _ in found]) for found in parts]


def _bands(models: Models, candidates: Sequence[Candidate]) -> dict[str, Band]:
    limits = [math.nan if c.power_limit_w is None else c.power_limit_w for c in candidates]
    acting = models.acting([c.mitigation for c in candidates])
    return forecast_bands(models, Shapes.of(candidates), np.array(limits, dtype=float), acting)


def _intervals(bands: dict[str, Band], count: int) -> list[dict[str, Interval]]:
    """Return the intervals of each configuration, with every quantity named."""
    columns: dict[str, list[Interval]] = {}
    for name in QUANTITIES:
        band = bands.get(name)
        if band is None:
            columns[name] = [UNKNOWN] * count
            continue
        kind = int if name in _WHOLE else float
        triples = zip(band.value.tolist(), band.low.tolist(), band.high.tolist(), strict=True)
        columns[name] = [Interval(value=kind(v), low=kind(low), high=kind(high)) for v, low, high in triples]
    return [{name: columns[name][index] for name in QUANTITIES} for index in range(count)]


def _check_candidate(candidate: Candidate) -> None:
    for name in ("nodes", "processes_per_node", "local_batch", "accumulation"):
        value = getattr(candidate, name)
        if type(value) is not int or value < 1:
            raise InputError(f"candidate.{name}: a whole number of at least 1 is needed, got {value!r}. Mend it.")
    limit = candidate.power_limit_w
    if limit is not None and not 0 < limit < math.inf:
        raise InputError(f"candidate.power_limit_w: watts above 0 or none at all are needed, got {limit!r}. Mend it.")
    if candidate.stages is not None:
        check_stages(candidate)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to ``most`` that fits, by doubling and halving; 0 where 1 does not."""
    if most < 1 or not fits(1):
        return 0
    low = 1
    while low < most and fits(min(2 * low, most)):
        low = min(2 * low, most)
    high = min(2 * low, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
