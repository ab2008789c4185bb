"""What is said when methods are dropped: what was seen beside what was forecast, and what the rest takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tula_core.models.cost import hourly_price
from tula_core.records import MethodChange, Plan, Row


def cause_words(report: Mapping[str, Any], metric: str) -> str:
    """Return why methods were given up: a report of the workers in words."""
    if report["cause"] == "diverged":
        loss = "no finite number" if report["loss"] is None else f"{report['loss']:.4g}"
        return (
            f"the loss diverged a second time, to {loss}, after {report['samples']:,} samples at a learning rate of "
            f"{report['rate']:.4g}"
        )
    forecast = report["forecast"]
    seen = "no finite number" if report["seen"] is None else f"{report['seen']:.4f}"
    return (
        f"{metric} was {seen} after epoch {report['epochs']:.0f}, forecast {forecast['value']:.4f} "
        f"({forecast['low']:.4f} to {forecast['high']:.4f})"
    )


def change_words(change: MethodChange, effect: str) -> str:
    """Return the warning that goes with a change of method."""
    return f"a wrong guess: {change.because}. Training goes on {change.step()}; {effect}"


def effect_words(plan: Plan, first: Row, row: Row, samples: int, spent: tuple[float, float]) -> str:
    """Return what a change does to time and cost.

    Parameters
    ----------
    first
        The row that the run was begun with, whose forecast it is held against.
    row
        The row that takes over after ``samples``.
    spent
        Seconds and node-hours of the run so far.
    """
    planned, whole = first["time_to_train_s"].value, row["time_to_train_s"].value
    hours, price = row["node_hours"].value, hourly_price(plan.job.cluster)
    spent_s, spent_hours = spent
    if whole is None or hours is None:
        return "what the rest takes was not forecast, and the forecast of time and cost no longer holds"
    epochs = row["epochs"].value or plan.job.recipe.epochs
    left = max(0.0, 1.0 - samples / (epochs * int(plan.facts["train_samples"])))
    then_s = spent_s + left * whole
    words = f"the run then takes about {then_s:.3g} s"
    words += "" if planned is None else f" instead of the {planned:.3g} s that were forecast"
    planned_usd = first["cost_usd"].value
    if price is not None:
        words += f" and costs about {price * (spent_hours + left * hours):.3g} USD"
        words += "" if planned_usd is None else f" instead of {planned_usd:.3g} USD"
    return words
