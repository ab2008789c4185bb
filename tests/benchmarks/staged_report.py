"""The lines about a staged run: its stages, samples, weights, time and cost, and what kills cost."""

from __future__ import annotations

from tests.benchmarks.staged_story import Story, dealt, lost_to_kills, resumed_at, stage_seconds
from tula_core.mitigations.batches.stages import batch_of, processes_of
from tula_core.models.cost import hourly_price
from tula_core.records import Outcome, Plan, Row


def total_samples(plan: Plan) -> int:
    """Return the training samples of the whole run."""
    return int(plan.facts["train_samples"]) * plan.job.recipe.epochs


def planned_lines(plan: Plan, row: Row) -> list[str]:
    """Return what was planned."""
    stages = row.candidate.stages or ()
    moves = ", then ".join(f"{batch_of(stage)} on {processes_of(stage)}" for stage in stages)
    return [
        f"{plan.job.title}: {plan.job.recipe.epochs} epochs, {total_samples(plan):,} samples, batch {moves}",
        plan.reason,
    ]


def report(title: str, story: Story, plan: Plan, weights: str) -> tuple[list[str], bool]:
    """Return the lines about a run, and whether its samples and its weights are right."""
    job, outcome = plan.job, story.outcome
    found = dealt(outcome.stages, int(plan.facts["train_samples"]), job.recipe.epochs, job.seed)
    once = found.once_an_epoch and sum(found.steps) == outcome.actual["steps"]
    once = once and {0, *found.ends}.issuperset(resumed_at(story.launches))
    lines = [f"{title}:"]
    for stage, steps, seconds in zip(
        outcome.stages, found.steps, stage_seconds(outcome.stages, story.launches), strict=True
    ):
        lines.append(
            f"  {stage.nodes} x {stage.processes_per_node}, batch {batch_of(stage):5d} from {stage.from_samples:7,}: "
            f"{steps:6,} steps, {seconds:6.2f} s"
        )
    lines += [f"  resumed at {samples:,} samples, where a checkpoint was" for samples in resumed_at(story.launches)]
    lines.append(f"  {int(found.counts.sum()):,} samples, each once in every epoch: {_yes(once)}")
    lines.append(f"  weights {story.weights}, those of the run left alone: {_yes(story.weights == weights)}")
    lines += [f"  {line}" for line in (*_spent(outcome), *_lost(story, plan))]
    return lines, once and story.weights == weights


def _spent(outcome: Outcome) -> list[str]:
    time_s, cost = ("time_to_train_s", "time", "s", 1), ("cost_usd", "cost", "USD", 4)
    return [
        f"{label} {outcome.actual[name]:.{digits}f} {unit}, {_beside(outcome, name, outcome.actual[name] or 0.0)}"
        for name, label, unit, digits in (time_s, cost)
    ]


def _lost(story: Story, plan: Plan) -> list[str]:
    """Return what the kills cost, and whether one attempt alone would have cost what was forecast."""
    if not resumed_at(story.launches):
        return []
    outcome, lost = story.outcome, lost_to_kills(story.launches)
    lost_s, lost_usd = lost.in_vain_s + lost.start_up_s, lost.node_s / 3600 * (hourly_price(plan.job.cluster) or 0.0)
    alone_s = (outcome.actual["time_to_train_s"] or 0.0) - lost_s
    alone_usd = (outcome.actual["cost_usd"] or 0.0) - lost_usd
    return [
        f"lost {lost_s:.1f} s, {lost_usd:.4f} USD: {lost.in_vain_s:.1f} s trained in vain, {lost.start_up_s:.1f} s of "
        "starting again",
        f"one attempt alone {alone_s:.1f} s, {_beside(outcome, 'time_to_train_s', alone_s)}",
        f"one attempt alone {alone_usd:.4f} USD, {_beside(outcome, 'cost_usd', alone_usd)}",
    ]


def _beside(outcome: Outcome, name: str, actual: float) -> str:
    value, low, high = (
        getattr(outcome, part)[name] or 0.0 for part in ("predicted", "predicted_low", "predicted_high")
    )
    inside = "inside" if low <= actual <= high else "OUTSIDE"
    return f"forecast {value:.4g} ({low:.4g} to {high:.4g}): {inside}"


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"
