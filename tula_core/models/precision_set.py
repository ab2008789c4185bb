"""The precisions a job considers beside its recipe's: their models, and what they take for granted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tula_core.job import Job
from tula_core.models.forecasting import Models
from tula_core.models.memory import MemoryModel, StateBytes
from tula_core.models.precision import PrecisionModel, fit_precision
from tula_core.models.precision_step import PrecisionStep, precision_memory, precision_step
from tula_core.models.step.fit import StepTimeModel
from tula_core.records.profile import Profile

_SAME_LOSS = 0.02  # relative, from which a difference at the initial weights is spoken of


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherPrecision:
    """One precision with a job's step-time and memory models in it."""

    model: PrecisionModel
    step: PrecisionStep
    memory: MemoryModel | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Precisions:
    """All other precisions, by name."""

    reference: str
    others: Mapping[str, OtherPrecision] = field(default_factory=dict)

    def models(self, models: Models, precision: str | None) -> Models:
        """Return the models in ``precision``; those given where it is None or not considered."""
        other = self.others.get(precision or "")
        return models if other is None else dataclasses.replace(models, step=other.step, memory=other.memory)

    def refused(self, precision: str | None) -> str | None:
        """Return why nothing can be trained in a precision, None where it can or where it is None, the recipe's."""
        if precision is None or precision == self.reference:
            return None
        if precision not in self.others:
            return f"precision {precision} is not among those considered: add it to precisions"
        failure = self.others[precision].model.failure
        return None if failure is None else f"training in {precision} failed when it was measured: {failure}"

    def assumptions(self) -> Iterator[str]:
        """Yield what rows in other precisions take for granted."""
        for name, other in self.others.items():
            if other.model.failure is not None:
                yield f"training in {name} failed when it was measured: {other.model.failure}"
                continue
            yield (
                f"accuracy and epochs in {name} are taken to be those in {self.reference}, and so are start-up and "
                f"evaluations: {_evidence(other.model, self.reference)}"
            )
            if not other.model.measured:
                yield (
                    f"the speed of {name} was not measured here: it rests on what is usual on such devices, with wide "
                    "intervals"
                )


def _evidence(model: PrecisionModel, reference: str) -> str:
    found = [row.loss_difference for row in model.rows if row.loss_difference is not None]
    if not found:
        return "no training in it was tried, so try a short one before a long one"
    most = max(found)
    if most > _SAME_LOSS:
        return f"beware, the loss at the initial weights differs by {100 * most:.2g} % from that in {reference}"
    return f"the loss at the initial weights differs by {100 * most:.2g} % at most, and nothing was trained in it"


def fit_precisions(
    profile: Profile, job: Job, step: StepTimeModel, memory: MemoryModel | None, state: StateBytes
) -> Precisions:
    """Return the models of every precision that the job considers; without measurements they are wide."""
    reference = job.recipe.precision
    others: dict[str, OtherPrecision] = {}
    for name in job.other_precisions:
        model = fit_precision(name, reference, profile.precisions, profile.steps, device=profile.hardware.device)
        others[name] = OtherPrecision(
            model=model,
            step=precision_step(step, model, profile.steps, profile.communication, profile.facts.gradient_bytes),
            memory=None if memory is None else precision_memory(memory, model, state, reference),
        )
    return Precisions(reference=reference, others=others)
