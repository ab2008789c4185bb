"""`Places`: the grid as the study's parameters see it, by layout, methods and batch."""

from __future__ import annotations

from collections.abc import Sequence

import optuna

from tula_core.records import Candidate
from tula_core.search.space import key


class Places:
    """Where each candidate of a grid is found by its layout and, where there are several, by its methods.

    Parameters
    ----------
    grid
        All candidates, in the order of the table.
    """

    def __init__(self, grid: Sequence[Candidate]) -> None:
        self._members: dict[tuple[str, str], list[int]] = {}
        self._index = {key(candidate): index for index, candidate in enumerate(grid)}
        for index, candidate in enumerate(grid):
            self._members.setdefault((_layout(candidate), _methods(candidate)), []).append(index)
        self._layouts = list(dict.fromkeys(layout for layout, _ in self._members))
        self._methods = list(dict.fromkeys(methods for _, methods in self._members))

    @property
    def longest(self) -> int:
        """The most candidates that share layout and methods."""
        return max(len(members) for members in self._members.values())

    @property
    def empty(self) -> int:
        """How many pairs of layout and methods hold no candidate."""
        return len(self._layouts) * len(self._methods) - len(self._members)

    def suggest(self, trial: optuna.Trial) -> list[int]:
        """Return the places of the candidates with the layout and methods of a trial, none where it has none."""
        layout = trial.suggest_categorical("layout", self._layouts)
        several = len(self._methods) > 1
        methods = trial.suggest_categorical("mitigation", self._methods) if several else self._methods[0]
        return self._members.get((layout, methods), [])

    def of_layout(self, layout: str) -> list[int]:
        """Return the places of all candidates with a layout, in the order of the table."""
        return sorted(index for (own, _), members in self._members.items() if own == layout for index in members)

    def parameters(self, candidate: Candidate) -> dict[str, str | int]:
        """Return the parameters of the trial that looks at a candidate."""
        place = (_layout(candidate), _methods(candidate))
        option = self._members[place].index(self._index[key(candidate)])
        methods = {"mitigation": place[1]} if len(self._methods) > 1 else {}
        return {"layout": place[0], **methods, "batch_option": option}


def _layout(candidate: Candidate) -> str:
    return f"{candidate.nodes}x{candidate.processes_per_node}"


def _methods(candidate: Candidate) -> str:
    return " + ".join(candidate.mitigation) or "none"
