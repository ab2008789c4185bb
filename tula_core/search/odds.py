"""Limits that a forecast keeps with a chance: deadline, budget, least accuracy and the target.

Each is kept where the chance of it, by the forecast's interval, is at least ``constraints.confidence``, whatever
methods a candidate trains with: what is known less well has the wider interval and so the smaller chance. A tighter
limit or a higher confidence admits fewer candidates, never another one.
"""

from __future__ import annotations

import math
from functools import partial

from tula_core.job import Constraints, Target
from tula_core.models.decision.chances import chance_at_least, chance_at_most, kept_with, reached_with
from tula_core.records import Row
from tula_core.search import words
from tula_core.search.violation import Violation, unchecked

EVEN_CHANCE = 0.5
"""The lowest confidence that a job may ask for; a target with a smaller chance counts as not reached."""
SAME_CHANCE = 0.05
"""Chances of a target closer than this cannot be told apart."""


def deadline(row: Row, constraints: Constraints) -> Violation | None:
    """Return how a row breaks the deadline, None where it is kept with enough confidence or there is none."""
    limit, forecast = constraints.deadline, row["time_to_train_s"]
    if limit is None or forecast.value is None:
        return None
    needed = kept_with(forecast, constraints.confidence)
    if needed <= limit:
        return None
    remedy = f"Raise constraints.deadline to {words.admitting_duration(needed)}"
    shown, bound = words.beside_limit(forecast.value, limit, words.duration, words.given_duration)
    text = f"time to train {shown} is above the deadline of {bound}"
    if forecast.value <= limit:
        text, other = _unsure(f"the deadline of {bound} is kept", chance_at_most(forecast, limit), constraints)
        remedy += other
    return Violation(key="deadline", excess=needed / limit - 1, text=text, remedy=remedy)


def budget(row: Row, constraints: Constraints) -> Violation | None:
    """Return how a row breaks the budget, None where it is kept with enough confidence or there is none."""
    limit, forecast = constraints.budget_usd, row["cost_usd"]
    if limit is None:
        return None
    if forecast.value is None:
        return unchecked("budget_usd", "cost")
    needed = kept_with(forecast, constraints.confidence)
    if needed <= limit:
        return None
    remedy = f"Raise constraints.budget_usd to {words.admitting_usd(needed)}"
    given = partial(words.given_usd, like=forecast.value)
    shown, bound = words.beside_limit(forecast.value, limit, words.usd, given)
    text = f"cost {shown} is above the budget of {bound}"
    if forecast.value <= limit:
        text, other = _unsure(f"the budget of {bound} is kept", chance_at_most(forecast, limit), constraints)
        remedy += other
    return Violation(key="budget_usd", excess=needed / limit - 1, text=text, remedy=remedy)


def accuracy(row: Row, constraints: Constraints) -> Violation | None:
    """Return how a row breaks the least accuracy, None where it is reached with enough confidence or there is none."""
    limit, forecast = constraints.min_accuracy, row["accuracy"]
    if limit is None:
        return None
    if forecast.value is None:
        return unchecked("min_accuracy", "accuracy")
    reached = reached_with(forecast, constraints.confidence)
    if reached >= limit:
        return None
    text, other = f"accuracy {forecast.value:.4f} is below the least accuracy of {limit:g}", ""
    if forecast.value >= limit:
        text, other = _unsure(f"the least accuracy of {limit:g} is kept", chance_at_least(forecast, limit), constraints)
    remedy = f"Lower constraints.min_accuracy to {max(math.floor(reached * 1000) / 1000, 0):g}{other}"
    return Violation(key="min_accuracy", excess=(limit - reached) / max(limit, 1e-9), text=text, remedy=remedy)


def beside_reference(chance: float | None, constraints: Constraints) -> Violation | None:
    """Return how a row keeps the reference batch's accuracy not surely enough, None where it does or none can say."""
    confidence = constraints.confidence
    if chance is None or chance >= confidence:
        return None
    text = (
        f"the accuracy that the reference batch's allows is kept with a chance of {words.chance(chance)} only, "
        f"constraints.confidence asks for {words.chance(confidence)}"
    )
    remedy = "Set constraints.min_accuracy to replace this rule"
    if chance >= EVEN_CHANCE:
        remedy += f", or lower constraints.confidence to {math.floor(chance * 100) / 100:g}"
    return Violation(key="reference_accuracy", excess=1 - chance / confidence, text=text, remedy=remedy)


def least_chance(best: float | None, confidence: float) -> float:
    """Return the chance with which each candidate has to reach the target.

    That is ``confidence``. Where not even the surest of the candidates that are known best is clearly as sure, the
    doubt is in the target and not in a candidate: then it is the chance of the surest less `SAME_CHANCE`. It is never
    less than an even chance, nor does it fall as the confidence rises.

    Parameters
    ----------
    best
        Chance of the surest of the reference batch, what was measured and the smallest batch, with methods that the
        pilots trained with; None where nothing is known of it.
    confidence
        ``constraints.confidence``.

    >>> [least_chance(best, 0.8) for best in (0.95, 0.82, 0.7, 0.4, None)]
    [0.8, 0.77, 0.65, 0.5, 0.5]
    """
    surest = EVEN_CHANCE if best is None else round(best - SAME_CHANCE, 9)
    return max(EVEN_CHANCE, min(confidence, surest))


def target(
    chance: float, goal: Target, epochs: int, constraints: Constraints, *, best: float | None, expected: float | None
) -> Violation | None:
    """Return how a row reaches the target not surely enough within the epochs, None where it does.

    Parameters
    ----------
    chance
        Of reaching it.
    best
        As in `least_chance`.
    expected
        The metric that is forecast, None where it is unknown.
    """
    needed = least_chance(best, constraints.confidence)
    if chance >= needed:
        return None
    shown = math.floor(chance * 100) / 100  # never rounded up to what it misses
    name = f"target {goal.metric} {goal.value:g}"
    easier = "" if expected is None else f" or set target.value to {expected:.3g}, which is what is expected"
    text = f"{name} is not expected within {epochs} epochs (chance {shown:.2f})"
    remedy = f"Raise recipe.epochs above {epochs}{easier}"
    if chance >= EVEN_CHANCE:
        asked = f"constraints.confidence asks for {words.chance(constraints.confidence)}"
        if needed < constraints.confidence:
            asked = f"{asked}; the surest of those tried has {words.chance(best or needed)}"
        text = f"{name} is reached within {epochs} epochs with a chance of {words.chance(chance)} only, {asked}"
        remedy = f"Raise recipe.epochs above {epochs}, or lower constraints.confidence to {shown:g}"
    return Violation(key="target", excess=(needed - chance) / needed, text=text, remedy=remedy)


def chances(row: Row, constraints: Constraints) -> dict[str, float]:
    """Return the chance that a row keeps each of these limits that is set and can be checked, by field name."""
    upper = {
        "deadline": (constraints.deadline, row["time_to_train_s"]),
        "budget_usd": (constraints.budget_usd, row["cost_usd"]),
    }
    found = {
        name: chance_at_most(forecast, limit)
        for name, (limit, forecast) in upper.items()
        if limit is not None and forecast.value is not None
    }
    if constraints.min_accuracy is not None and row["accuracy"].value is not None:
        found["min_accuracy"] = chance_at_least(row["accuracy"], constraints.min_accuracy)
    return found


def _unsure(kept: str, chance: float, constraints: Constraints) -> tuple[str, str]:
    """Return the text of a limit that is kept at the value and yet not surely enough, and the other remedy."""
    shown, wanted = words.chance(chance), words.chance(constraints.confidence)
    text = f"{kept} with a chance of {shown} only, constraints.confidence asks for {wanted}"
    # Rounded down, so that what is advised admits the row.
    return text, f", or lower constraints.confidence to {math.floor(chance * 100) / 100:g}"
