"""The learning rate of a run: the plan's, what the methods make of it, and what divergences have left of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tula_core.job import Recipe
from tula_core.mitigations.compose import Methods
from tula_core.mitigations.rates.plan import LearningRate, rate_rule
from tula_core.training.state import Progress

REDUCTION = 0.5


class RunRate:
    """What each step is taken at, and what is to be said of it.

    A reduction lowers what the methods have made of the rate, so that it acts whatever they make of it.

    Parameters
    ----------
    planned
        By the rule and the schedule, not reduced.
    methods, names
        Of the run; the names are of all, those without a hook too.
    """

    def __init__(self, planned: LearningRate, methods: Methods, names: Sequence[str]) -> None:
        self.planned = planned
        self._methods = methods
        self._rule = rate_rule(names)
        self._least, self._most, self._by = methods.peaks(planned.peak)
        self._reduction = 1.0

    @property
    def warmup_samples(self) -> int:
        """Length of the warm-up."""
        return self.planned.warmup_samples

    def reduce(self, times: int) -> None:
        """Take up how often the rate was lowered."""
        self._reduction = REDUCTION**times

    def at(self, position: int, progress: Progress) -> float:
        """Return the rate of the step that begins after ``position`` samples that counted; the highest is noted."""
        if not self._methods.named:
            whole = self.planned.at(position)
        else:
            whole = self._methods.rate(self.planned.at(self._methods.clock(position)), position)
        progress.highest_rate = max(progress.highest_rate, whole)
        return whole * self._reduction

    def peak(self, progress: Progress) -> float:
        """Return the highest rate since the last reduction: of the steps so far where methods find it on the way."""
        found = self._most if self._least == self._most else progress.highest_rate or self._least
        return found * self._reduction

    def facts(self) -> dict[str, Any]:
        """Return what `rate_words` tells."""
        return {
            "least": self._least * self._reduction,
            "most": self._most * self._reduction,
            "rule": self._rule,
            "factor": self.planned.factor,
            "methods": list(self._by),
            "times": self._most / self.planned.peak,
            "reduction": self._reduction,
            "warmup_samples": self.warmup_samples,
        }


def rate_words(facts: Mapping[str, Any], recipe: Recipe, global_batch: int) -> str:
    """Return the peak of a run's rate and where it is from."""
    found = facts["least"] != facts["most"]
    peak = f"{facts['least']:.4g} to {facts['most']:.4g}" if found else f"{facts['most']:.4g}"
    said = [f"{facts['rule']} rule, factor {facts['factor']:.3g}"] if facts["rule"] else []
    if facts["methods"]:
        by = " and ".join(facts["methods"])
        said.append(f"found on the way by {by}" if found else f"times {facts['times']:.3g} by {by}")
    if facts["reduction"] < 1:
        said.append(f"times {facts['reduction']:.3g} after divergence")
    if facts["warmup_samples"]:
        said.append(f"warm-up over {facts['warmup_samples']:,} samples")
    return (
        f"global batch {global_batch}: learning rate {recipe.learning_rate:.4g} at batch {recipe.batch_size} -> "
        f"{peak} ({', '.join(said) or 'not scaled'})"
    )
