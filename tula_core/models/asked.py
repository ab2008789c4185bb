"""`CandidateColumns`: many candidates as arrays, so that what is asked of all of them is asked once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tula_core.errors import InputError
from tula_core.models.stages.check import check_stages, is_staged
from tula_core.models.step.time import Shapes
from tula_core.records.candidate import Candidate

Array = NDArray[np.float64]
Places = NDArray[np.intp]
_H = TypeVar("_H", bound=Hashable)

_COUNTS = ("nodes", "processes_per_node", "local_batch", "accumulation")


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateColumns:
    """Candidates in order, arrays of shape (n,).

    Attributes
    ----------
    shapes
        Layouts, of staged candidates the last stage's.
    limits_w
        Power limits, NaN where none is set.
    methods, method
        The lists of methods that differ, and which of them each candidate trains with.
    precisions, precision
        The precisions that differ, None for the recipe's, and which of them each candidate trains in.
    staged
        Places of the candidates that go through several layouts.
    given
        The candidates themselves where there are any; None where there are only arrays.
    """

    shapes: Shapes
    limits_w: Array
    methods: tuple[tuple[str, ...], ...]
    method: Places
    precisions: tuple[str | None, ...]
    precision: Places
    staged: Places
    given: Sequence[Candidate] | None = None

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> CandidateColumns:
        """Return the columns of candidates.

        Raises
        ------
        InputError
            A number of a candidate is not whole or not positive, a power limit is not watts, or its stages do not lead
            from the first sample to its own layout.
        """
        counts = {name: list(map(attrgetter(name), candidates)) for name in _COUNTS}
        limits = list(map(attrgetter("power_limit_w"), candidates))
        staged = [place for place, stages in enumerate(map(attrgetter("stages"), candidates)) if stages is not None]
        whole = all(set(map(type, values)) <= {int} and min(values, default=1) >= 1 for values in counts.values())
        if staged or not whole or set(limits) != {None}:
            for candidate in candidates:
                _check(candidate)
        methods, method = _distinct(list(map(attrgetter("mitigation"), candidates)))
        others = any(map(attrgetter("options"), candidates))
        precisions, precision = _distinct(
            list(map(attrgetter("precision"), candidates) if others else [None] * len(candidates))
        )
        return cls(
            shapes=Shapes(**{name: np.array(values, dtype=float) for name, values in counts.items()}),
            limits_w=np.array([np.nan if limit is None else limit for limit in limits], dtype=float),
            methods=methods,
            method=method,
            precisions=precisions,
            precision=precision,
            staged=np.array([place for place in staged if is_staged(candidates[place])], dtype=np.intp),
            given=candidates,
        )

    @classmethod
    def of_arrays(
        cls,
        nodes: NDArray[np.int64],
        processes_per_node: NDArray[np.int64],
        local_batch: NDArray[np.int64],
        accumulation: NDArray[np.int64],
        mitigation: tuple[str, ...] = (),
    ) -> CandidateColumns:
        """Return plain candidates in the recipe's precision, one for each place of arrays of whole numbers.

        Raises
        ------
        InputError
            An array's numbers are not whole or not positive.
        """
        given = (nodes, processes_per_node, local_batch, accumulation)
        for name, values in zip(_COUNTS, given, strict=True):
            if values.dtype.kind not in "iu" or (values.size and values.min() < 1):
                raise InputError(
                    f"candidates.{name}: whole numbers of at least 1 are needed, got {values.dtype} numbers from "
                    f"{values.min() if values.size else 'none'}. Mend them."
                )
        alike = np.zeros(len(nodes), dtype=np.intp)
        return cls(
            shapes=Shapes(**{name: values.astype(float) for name, values in zip(_COUNTS, given, strict=True)}),
            limits_w=np.full(len(nodes), np.nan),
            methods=(mitigation,),
            method=alike,
            precisions=(None,),
            precision=alike,
            staged=np.zeros(0, dtype=np.intp),
        )

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.limits_w)

    def candidate(self, place: int | np.intp) -> Candidate:
        """Return one of them."""
        if self.given is not None:
            return self.given[int(place)]
        nodes, processes, local_batch, accumulation = (int(getattr(self.shapes, name)[place]) for name in _COUNTS)
        return Candidate(
            nodes=nodes,
            processes_per_node=processes,
            local_batch=local_batch,
            accumulation=accumulation,
            mitigation=self.methods[self.method[place]],
        )

    def shapes_at(self, places: Places) -> Shapes:
        """Return the layouts at some places."""
        return self.shapes.part(places)


def _distinct(values: Sequence[_H]) -> tuple[tuple[_H, ...], Places]:
    """Return the values that differ, in the order of their first place, and which of them is where."""
    if values and values.count(values[0]) == len(values):
        return (values[0],), np.zeros(len(values), dtype=np.intp)
    number = {value: index for index, value in enumerate(dict.fromkeys(values))}
    return tuple(number), np.fromiter(map(number.__getitem__, values), dtype=np.intp, count=len(values))


def _check(candidate: Candidate) -> None:
    for name in _COUNTS:
        value = getattr(candidate, name)
        if type(value) is not int or value < 1:
            raise InputError(f"candidate.{name}: a whole number of at least 1 is needed, got {value!r}. Mend it.")
    limit = candidate.power_limit_w
    if limit is not None and not 0 < limit < math.inf:
        raise InputError(f"candidate.power_limit_w: watts above 0 or none at all are needed, got {limit!r}. Mend it.")
    if candidate.stages is not None:
        check_stages(candidate)
