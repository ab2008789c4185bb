"""Which candidates cannot be trained whatever the job's limits are: as codes of many, and in words for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from tula_core.models.asked import CandidateColumns
from tula_core.models.forecasting import Models, run_interruptions
from tula_core.models.memory import HostRoom
from tula_core.models.precision_set import Precisions
from tula_core.models.stages.check import layouts_of
from tula_core.models.step.time import Shapes
from tula_core.records.candidate import Candidate

Array = NDArray[np.float64]
Codes = NDArray[np.int8]


class Verdict(IntEnum):
    """What stands against a candidate; of several the first. Nothing is forecast of one up to ``PRECISION``."""

    FEASIBLE = 0
    ABOVE_DATA = 1
    NO_POWER_LIMIT = 2
    PRECISION = 3
    OUT_OF_MEMORY = 4
    NEVER_ENDS = 5
    HOST_FULL = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Feasibility:
    """What rules candidates out."""

    models: Models
    precisions: Precisions
    host: HostRoom

    def impossible(self, asked: CandidateColumns) -> Codes:
        """Return codes, shape (n,), of candidates of which nothing can be forecast, ``FEASIBLE`` for others."""
        found = np.full(asked.count, Verdict.FEASIBLE, dtype=np.int8)
        refused = np.array([self.precisions.refused(name) is not None for name in asked.precisions], dtype=np.bool_)
        found[refused[asked.precision]] = Verdict.PRECISION
        if self.models.power.top_w is None:
            found[np.isfinite(asked.limits_w)] = Verdict.NO_POWER_LIMIT
        found[asked.shapes.global_batch > self.models.facts.train_samples] = Verdict.ABOVE_DATA
        return found

    def troubled(self, asked: CandidateColumns, memory_high: Array) -> Codes:
        """Return codes, shape (n,), of candidates that can be forecast and cannot run, ``FEASIBLE`` for others.

        Parameters
        ----------
        memory_high
            Upper end of the bytes of the fullest process, NaN where unknown, shape (n,).
        """
        found = np.full(asked.count, Verdict.FEASIBLE, dtype=np.int8)
        found[self.host.is_full(asked.shapes, memory_high)] = Verdict.HOST_FULL
        found[self._any_layout(asked, self._never_ends)] = Verdict.NEVER_ENDS
        found[self._any_layout(asked, self._ran_out)] = Verdict.OUT_OF_MEMORY
        return found

    def because(self, verdict: int, candidate: Candidate, memory_high: float | None) -> str | None:
        """Return what stands against a candidate in words, None where nothing does."""
        samples = self.models.facts.train_samples
        match verdict:
            case Verdict.ABOVE_DATA:
                return f"global batch {candidate.global_batch} is above the {samples} training samples"
            case Verdict.NO_POWER_LIMIT:
                return "a power limit is not forecast where no accelerator's limit is known"
            case Verdict.PRECISION:
                return self.precisions.refused(candidate.precision)
            case Verdict.OUT_OF_MEMORY:
                return f"local batch {self._failed_words(candidate)} when it was measured"
            case Verdict.NEVER_ENDS:
                per_hour = self.models.job.cluster.spot_interruptions_per_hour
                return (
                    f"with {per_hour:g} interruptions an hour of each of {candidate.nodes} spot nodes hardly any start "
                    "and step to the next checkpoint are left alone, so that the run would not end"
                )
            case Verdict.HOST_FULL:
                return self.host.crowded(candidate, memory_high)
        return None

    @staticmethod
    def _any_layout(asked: CandidateColumns, holds: Callable[[Shapes], NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Return where something holds of the layout of a candidate, or of a stage of it."""
        found = holds(asked.shapes)
        for place in asked.staged:
            found[place] = holds(Shapes.of(layouts_of(asked.candidate(place)))).any()
        return found

    def _never_ends(self, shapes: Shapes) -> NDArray[np.bool_]:
        stops = run_interruptions(self.models, shapes)
        return np.zeros(len(shapes.nodes), dtype=np.bool_) if stops is None else stops.hopeless

    def _ran_out(self, shapes: Shapes) -> NDArray[np.bool_]:
        found = np.zeros(len(shapes.nodes), dtype=np.bool_)
        for use in () if self.models.memory is None else self.models.memory.failed:
            as_many = (shapes.processes_per_node >= use.processes_per_node) & (shapes.nodes >= use.nodes)
            found |= as_many & (shapes.local_batch >= use.local_batch)
        return found

    def _failed_words(self, candidate: Candidate) -> str:
        failed, memory = self._failed(candidate), self.models.memory
        over = memory is not None and all(
            use.outcome == "over_limit" for use in memory.failed if use.local_batch == failed
        )
        return f"{failed} needed more memory than may be used" if over else f"{failed} ran out of memory"

    def _failed(self, candidate: Candidate) -> int | None:
        """Return the local batch that did not fit, of the first layout that is as large."""
        for part in () if self.models.memory is None else layouts_of(candidate):
            assert self.models.memory is not None
            failed = self.models.memory.failed_at(part.processes_per_node, part.nodes)
            if failed is not None and part.local_batch >= failed:
                return failed
        return None
