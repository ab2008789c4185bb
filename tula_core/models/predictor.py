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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tula_core.job import Job
from tula_core.models.asked import CandidateColumns, Places
from tula_core.models.assumptions import assumptions
from tula_core.models.bands import forecast_bands
from tula_core.models.checking import check_profile
from tula_core.models.columns import Columns, ColumnsBuilder
from tula_core.models.feasibility import Feasibility, Verdict
from tula_core.models.forecasting import Models, memory_band
from tula_core.models.learning.fit import Learning, fit_learning
from tula_core.models.learnt import Learnt
from tula_core.models.memory import HostRoom, fit_host_memory, fit_memory, state_bytes
from tula_core.models.plausibility import credible
from tula_core.models.power.node import fit_node_power
from tula_core.models.precision_set import Precisions, fit_precisions
from tula_core.models.stages.bands import staged_bands
from tula_core.models.stages.chances import Course, course_of, keeping_probability, learning_of, reach_probability
from tula_core.models.stages.check import layouts_of
from tula_core.models.stages.curve import expected_curve
from tula_core.models.step.communication import fit_links
from tula_core.models.step.fit import fit_step_time
from tula_core.models.step.methods import UNNOTICED
from tula_core.models.step.time import Shapes
from tula_core.models.totals import fit_overheads
from tula_core.records.candidate import Candidate, ExpectedPoint, Row
from tula_core.records.corrections import BUILTIN, Corrections
from tula_core.records.mitigation import MitigationEffect
from tula_core.records.profile import Profile

_SECTIONS = 32  # parts into which the room for the largest local batch is cut each time
_CHUNK = 65_536  # candidates at once: bounds the memory that draws take


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
        self._learnt: dict[tuple[Course, tuple[str, ...]], Learning | None] = {}

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
        return self.forecast_columns(candidates).rows()

    def forecast_columns(self, candidates: Sequence[Candidate] | CandidateColumns) -> Columns:
        """Return what `forecast` does as arrays, many times faster; single rows can be had from them.

        Raises
        ------
        InputError
            As `forecast`.
        """
        asked = candidates if isinstance(candidates, CandidateColumns) else CandidateColumns.of(candidates)
        rules = Feasibility(models=self._models, precisions=self._precisions, host=self._host)
        verdict, built = rules.impossible(asked), ColumnsBuilder(asked.count)
        measured = np.zeros(asked.count, dtype=np.bool_)
        kinds = list(self._models_of(asked))
        for chunk in _chunks(asked, verdict == Verdict.FEASIBLE):
            learnt = Learnt.of(self._models, asked.shapes.global_batch[chunk], asked.methods, asked.method[chunk])
            for models, alike in kinds:
                mine = np.flatnonzero(alike[chunk])
                if len(mine):
                    _fill(built, models, asked, chunk[mine], learnt.at(mine))
        for models, alike in kinds:
            places = np.flatnonzero(alike & (verdict == Verdict.FEASIBLE))
            _fill_staged(built, models, asked, places[np.isin(places, asked.staged)])
            measured[places] = _measured(models, asked, places)
        possible = verdict == Verdict.FEASIBLE
        verdict[possible] = rules.troubled(asked, built.high("memory_bytes"))[possible]
        return Columns(
            asked=asked, bands=built.bands, known=built.known, measured=measured, verdict=verdict, rules=rules
        )

    def _models_of(self, asked: CandidateColumns) -> Iterator[tuple[Models, NDArray[np.bool_]]]:
        """Yield the models of each precision and cost of a step, and which candidates they are of, shape (n,)."""
        made = [self._models.with_methods(names) for names in asked.methods]
        kinds = list(dict.fromkeys((each.step_cost, each.kept) for each in made))
        kind = np.array([kinds.index((each.step_cost, each.kept)) for each in made], dtype=int)[asked.method]
        for number, precision in enumerate(asked.precisions):
            models, inside = self._precisions.models(self._models, precision), asked.precision == number
            for place in np.unique(kind[inside]):
                cost, kept = kinds[place]
                yield replace(models, step_cost=cost, kept=kept), inside & (kind == place)

    def reach_probability(self, candidate: Candidate) -> float | None:
        """Return the chance that training reaches the target within the cap, None where there is no way to tell."""
        return reach_probability(self._models, self._learning(candidate))

    def keeping_probability(self, candidate: Candidate, reference: Candidate, slack: float) -> float | None:
        """Return the chance that a metric is at most ``slack`` worse than the reference's; None where unknown."""
        return keeping_probability(self._models, self._learning(candidate), self._learning(reference), slack)

    def _learning(self, candidate: Candidate) -> Learning | None:
        """Return draws of what a candidate learns, made once for all that learn alike, whatever their processes."""
        key = (course_of(candidate), candidate.mitigation)
        if key not in self._learnt:
            self._learnt[key] = learning_of(self._models, candidate)
        return self._learnt[key]

    def expected_curve(self, candidate: Candidate) -> tuple[ExpectedPoint, ...] | None:
        """Return the metric that a run is expected to show at the end of each epoch, None where it is unknown."""
        return expected_curve(self._models, candidate)

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
        self,
        nodes: int,
        processes_per_node: int,
        memory_bytes_limit: float,
        precision: str | None = None,
        mitigation: Sequence[str] = (),
    ) -> int | None:
        """Return the largest local batch whose upper memory bound fits, with every smaller power of two fitting too.

        At most the training set's share of a process, less than any size that ran out of memory, and at most the
        largest measured size where readings do not grow. What the methods of ``mitigation`` keep is counted. 0 where
        not even one sample fits; None where memory is unknown.
        """
        models = self._precisions.models(self._models, precision).with_methods(mitigation)
        if models.memory is None:
            return None
        processes = nodes * processes_per_node
        most = models.facts.train_samples // processes
        failed = models.memory.failed_at(processes_per_node, nodes)
        most = most if failed is None else min(most, failed - 1)
        if not models.memory.extrapolates():
            most = min(most, models.memory.largest_measured)

        def fits(local_batches: NDArray[np.float64]) -> NDArray[np.bool_]:
            band = memory_band(models, local_batches, np.full_like(local_batches, processes))
            assert band is not None, "asked above whether memory is known"
            return band.high <= memory_bytes_limit

        return _largest(fits, most)


def fit(
    profile: Profile,
    job: Job,
    corrections: Corrections = BUILTIN,
    effects: Mapping[str, MitigationEffect] | None = None,
    step_costs: Mapping[str, float] | None = None,
    kept_copies: Mapping[str, float] | None = None,
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
    step_costs
        Computation of a step with each method over that of a plain one, which alone was timed, by their names.

    kept_copies
        What each method keeps beside a plain step's state, which alone was read, in copies of the gradients, by their
        names.

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
        step_costs=step_costs or {},
        kept_copies=kept_copies or {},
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


def _chunks(asked: CandidateColumns, possible: NDArray[np.bool_]) -> Iterator[Places]:
    """Yield places of possible candidates in one stage, those of one batch beside each other: they learn alike."""
    plain = possible.copy()
    plain[asked.staged] = False
    places = np.flatnonzero(plain)
    places = places[np.argsort(asked.shapes.global_batch[places], kind="stable")]
    for start in range(0, len(places), _CHUNK):
        yield places[start : start + _CHUNK]


def _fill(built: ColumnsBuilder, models: Models, asked: CandidateColumns, places: Places, learnt: Learnt) -> None:
    """Write the forecasts of candidates in one stage."""
    built.put(places, forecast_bands(models, asked.shapes_at(places), learnt, asked.limits_w[places]))


def _fill_staged(built: ColumnsBuilder, models: Models, asked: CandidateColumns, places: Places) -> None:
    """Write the forecasts of candidates that go through several stages."""
    found = staged_bands(models, [asked.candidate(place) for place in places])
    for place, bands in zip(places, found, strict=True):
        built.put(np.array([place]), bands)


def _measured(models: Models, asked: CandidateColumns, places: Places) -> NDArray[np.bool_]:
    """Return where the very step was timed, that of every stage; none where methods make it another step."""
    if abs(models.step_cost - 1.0) > UNNOTICED:
        return np.zeros(len(places), dtype=np.bool_)
    timed = models.step.is_measured(asked.shapes_at(places))
    for index in np.flatnonzero(np.isin(places, asked.staged)):
        stages = Shapes.of(layouts_of(asked.candidate(places[index])))
        timed[index] = models.step.is_measured(stages).all()
    return timed


def _largest(fits: Callable[[NDArray[np.float64]], NDArray[np.bool_]], most: int) -> int:
    """Return the largest number up to ``most`` that fits, after every power of two below it; 0 where 1 does not."""
    low, high = 0, most + 1
    asked = [2**power for power in range(most.bit_length())] + [most]
    while high - low > 1:
        good = fits(np.array(asked, dtype=float)).tolist()
        fitting = good.index(False) if False in good else len(good)
        low, high = ([low, *asked][fitting], [*asked, high][fitting])
        # Many sizes at once take hardly longer than one.
        asked = sorted({low + max((high - low) * part // _SECTIONS, 1) for part in range(1, _SECTIONS)})
    return low
