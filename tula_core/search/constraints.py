"""The limits a plan must keep, all at once, and how far a forecast is from keeping them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tula_core.engine.shares import Layout, smallest_micro_batch
from tula_core.errors import InputError
from tula_core.job import Job, Target
from tula_core.mitigations import refusal
from tula_core.mitigations.batches.stages import processes_of
from tula_core.models.cost import has_price
from tula_core.records import Candidate, Hardware, Profile, Row, Stage
from tula_core.search import odds, words
from tula_core.search.violation import Violation, unchecked

DEVICE_SHARE = 0.92
"""Share of an accelerator's memory that a process may fill; the rest goes to the driver and to fragmentation."""
HOST_SHARE = 0.90
"""Share of the host's memory that the processes of a node may fill together."""
ACCURACY_SLACK = 0.01
"""How far below the reference batch a forecast accuracy may lie where neither a target nor a minimum is given."""

LIMIT_KEYS = (
    "data",
    "mitigation",
    "forecast",
    "deadline",
    "budget_usd",
    "memory",
    "max_local_batch",
    "begin_alone",
    "min_accuracy",
    "reference_accuracy",
    "target",
)
"""Every limit a candidate can break; each is a constraint of the Optuna study."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLimit:
    """Most bytes per process, the field or fact it comes from, and whether the user set it."""

    size_bytes: int
    source: str
    by_user: bool


_BEYOND_LIMITS = ("data", "forecast", "begin_alone")


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A row whose feasibility is decided, with the limits it breaks."""

    row: Row
    violations: tuple[Violation, ...]

    @property
    def excess(self) -> float:
        """The relative excesses over all limits together; infinite where one could not be checked, for ranking only."""
        return sum(math.inf if v.excess is None else v.excess for v in self.violations)

    @property
    def is_hopeless(self) -> bool:
        """Whether it breaks what no other limit of the job would mend: its data, its forecast, how it begins."""
        return any(violation.key in _BEYOND_LIMITS for violation in self.violations)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Everything a row is held against.

    Attributes
    ----------
    expense
        ``cost_usd`` or ``node_hours``: the second axis of the front.
    worst_accuracy
        The worst accuracy allowed, from the forecast of the reference batch on one process; None where that sets none.
    reach_probability
        Chance of reaching the job's target, by candidate; `odds.least_chance` says how large it has to be.
    keeping_probability
        Chance of an accuracy not worse than the worst allowed beside the reference batch's own, by candidate; None
        where the value alone decides.
    best_chance
        Chance of the target where it is best among what is known best, the methods that the pilots trained with and
        those up to the reference batch; None without a target or where nothing is known of it. Below an even chance the
        target rules nothing out: the epochs are the budget, and accuracy is held against the reference.
    smallest_batch
        Fewest samples that the network can train on at once.
    """

    job: Job
    hardware: Hardware
    train_samples: int
    expense: str
    higher_is_better: bool
    worst_accuracy: float | None
    reach_probability: Callable[[Candidate], float | None]
    best_chance: float | None = None
    smallest_batch: int = 1
    keeping_probability: Callable[[Candidate], float | None] | None = None

    @property
    def target_in_reach(self) -> bool:
        """Whether some candidate is expected to reach the target, as far as is known."""
        return self.best_chance is None or self.best_chance >= odds.EVEN_CHANCE


def check_price(job: Job) -> None:
    """Refuse a budget that nothing can be held against; the job alone shows it.

    Raises
    ------
    InputError
        A budget without a price.
    """
    if job.constraints.budget_usd is not None and not has_price(job.cluster):
        raise InputError(
            f"constraints.budget_usd: {job.constraints.budget_usd:g} cannot be checked, because the job has no price. "
            "Give cluster.price_per_node_hour in USD, or leave the budget out."
        )


def check_request(job: Job, profile: Profile) -> None:
    """Refuse limits that cannot be checked at all.

    Raises
    ------
    InputError
        A budget without a price or with a price of unknown energy, power limits without an accelerator, or a least
        accuracy where the workload's metric is better when lower.
    """
    check_price(job)
    unmetered = not profile.power and job.cluster.power_watts is None
    if job.constraints.budget_usd is not None and job.cluster.electricity_usd_per_kwh is not None and unmetered:
        raise InputError(
            f"constraints.budget_usd: {job.constraints.budget_usd:g} cannot be checked, because electricity is part of "
            "the cost and no power meter could be read. Give cluster.power_watts, or leave the budget out."
        )
    if job.cluster.power_limits_w is not None and profile.hardware.device != "cuda":
        raise InputError(
            f"cluster.power_limits_w: {list(job.cluster.power_limits_w)} cannot be used, because this machine has no "
            "accelerator that could be limited. Leave it out."
        )
    if job.constraints.min_accuracy is not None and not profile.facts.higher_is_better:
        raise InputError(
            f"constraints.min_accuracy: {job.constraints.min_accuracy:g} does not fit the metric "
            f"{profile.facts.metric!r}, which is better when lower. Set target.value instead."
        )


def memory_limit(job: Job, hardware: Hardware, processes_per_node: int) -> MemoryLimit | None:
    """Return the tighter of the user's limit and the machine's; None where neither is known."""
    limits = []
    if job.constraints.memory is not None:
        limits.append(MemoryLimit(size_bytes=job.constraints.memory, source="constraints.memory", by_user=True))
    if hardware.device == "cuda" and hardware.device_memory_bytes is not None:
        size, source = DEVICE_SHARE * hardware.device_memory_bytes, f"{100 * DEVICE_SHARE:.0f} % of the device's memory"
        limits.append(MemoryLimit(size_bytes=int(size), source=source, by_user=False))
    if hardware.device == "cpu":
        size = HOST_SHARE * hardware.memory_bytes / processes_per_node
        source = f"a process's share of {100 * HOST_SHARE:.0f} % of the host's memory"
        limits.append(MemoryLimit(size_bytes=int(size), source=source, by_user=False))
    tightest = min(limits, key=lambda limit: limit.size_bytes, default=None)
    return None if tightest is None else replace(tightest, size_bytes=max(tightest.size_bytes, 1))


def accuracy_slack(profile: Profile, reference: float) -> float:
    """Return how much worse than ``reference`` a metric may be: a point of accuracy, 1 % of any other metric."""
    ceiling = profile.facts.metric_ceiling
    is_share = profile.facts.higher_is_better and (ceiling is None or ceiling <= 1) and abs(reference) <= 1
    return ACCURACY_SLACK if is_share else ACCURACY_SLACK * abs(reference)


def judge(row: Row, limits: Limits) -> Judged:
    """Return the row with its feasibility decided: feasible where every limit holds."""
    if row.candidate.global_batch > limits.train_samples:
        broken = [_too_little_data(row.candidate, limits.train_samples)]
    elif (fewest := _fewest_at_once(row.candidate, limits.train_samples)) < max(limits.smallest_batch, 1):
        asked = (_memory(row, limits), _smallest_allowed(limits))
        broken = [*(found for found in asked if found is not None), _too_few_at_once(row.candidate, limits, fewest)]
    elif not row.feasible:
        text = row.infeasible_because or "the predictor rules it out"
        broken = [Violation(key="forecast", excess=None, text=text, remedy="It cannot be admitted")]
    elif unknown := _unknown_axes(row, limits.expense):
        text = f"{' and '.join(unknown)} could not be forecast"
        broken = [
            Violation(key="forecast", excess=None, text=text, remedy="Raise probe.seconds so that more is measured")
        ]
    else:
        checks = (_methods, _deadline, _budget, _memory, _local_batch, _alone, _accuracy, _reference_accuracy, _target)
        broken = [found for check in checks if (found := check(row, limits)) is not None]
    because = "; ".join(violation.text for violation in broken) or None
    return Judged(row=replace(row, feasible=not broken, infeasible_because=because), violations=tuple(broken))


def _methods(row: Row, limits: Limits) -> Violation | None:
    """Say where a method cannot train on the candidate's processes or in its precision."""
    candidate = row.candidate
    precision = candidate.precision or limits.job.recipe.precision
    refused = [refusal(name, candidate.processes, precision) for name in candidate.mitigation]
    found = next((reason for reason in refused if reason is not None), None)
    if found is None:
        return None
    return Violation(key="mitigation", excess=1.0, text=found, remedy="Leave the method out, or give more processes")


def _too_little_data(candidate: Candidate, train_samples: int) -> Violation:
    batch = candidate.global_batch
    text = f"global batch {batch} is larger than the data set of {train_samples} training samples"
    remedy = f"Set recipe.batch_size to at most {train_samples}, or give at least {batch} training samples"
    return Violation(key="data", excess=batch / max(train_samples, 1) - 1, text=text, remedy=remedy)


def _fewest_at_once(candidate: Candidate, train_samples: int) -> int:
    if candidate.stages:
        ends = [*(stage.from_samples for stage in candidate.stages[1:]), math.inf]
        return min(
            _fewest_of_stage(stage, end, train_samples) for stage, end in zip(candidate.stages, ends, strict=True)
        )
    layout = Layout(
        processes=candidate.processes, local_batch=candidate.local_batch, accumulation=candidate.accumulation
    )
    return smallest_micro_batch(train_samples, layout)


def _fewest_of_stage(stage: Stage, end: float, train_samples: int) -> int:
    """Return the same for one stage: its full steps, the end of the epoch it begins in, and whole epochs."""
    layout = Layout(
        processes=stage.nodes * stage.processes_per_node,
        local_batch=stage.local_batch,
        accumulation=stage.accumulation,
    )
    spans, rest = [layout.global_batch], -stage.from_samples % train_samples
    if rest and stage.from_samples + rest <= end:
        spans.append(rest)
    if end - stage.from_samples - rest >= train_samples:
        spans.append(train_samples)
    return min(smallest_micro_batch(span, layout) for span in spans)


def _too_few_at_once(candidate: Candidate, limits: Limits, fewest: int) -> Violation:
    if fewest == 0:
        return _idle_process(candidate, limits.train_samples)
    least = limits.smallest_batch
    text = (
        f"an epoch of {limits.train_samples} samples has a micro-batch of {fewest}, and the network cannot train on "
        f"fewer than {least} at once"
    )
    remedy = f"Use fewer processes, or a batch size at which no stage or last step leaves a process fewer than {least}"
    return Violation(key="data", excess=1 - fewest / least, text=text, remedy=remedy)


def _smallest_allowed(limits: Limits) -> Violation | None:
    """Return how ``max_local_batch`` leaves too few samples for a micro-batch, None where it does not."""
    limit, least = limits.job.constraints.max_local_batch, limits.smallest_batch
    if limit is None or limit >= least:
        return None
    text = f"constraints.max_local_batch, {limit}, allows no micro-batch of {least}, the fewest that the network takes"
    remedy = f"Raise constraints.max_local_batch to {least}"
    return Violation(key="max_local_batch", excess=least / limit - 1, text=text, remedy=remedy)


def _idle_process(candidate: Candidate, train_samples: int) -> Violation:
    # With one sample for each process, a smaller last step cannot be shared out, and no sample may be dropped.
    left = train_samples % candidate.processes
    few = f"{left} sample{'s' * (left != 1)}"
    text = f"the last step of an epoch has {few}, which leaves some of {candidate.processes} processes idle"
    remedy = "Use at least two samples per process, or fewer processes"
    return Violation(key="data", excess=1 - left / candidate.processes, text=text, remedy=remedy)


def _unknown_axes(row: Row, expense: str) -> list[str]:
    # A run that takes no time or costs nothing is a fault of the forecast, not a bargain.
    names = {"time_to_train_s": "time to train", expense: words.EXPENSE_NAMES[expense]}
    return [name for quantity, name in names.items() if (row[quantity].value or 0.0) <= 0]


def _deadline(row: Row, limits: Limits) -> Violation | None:
    return odds.deadline(row, limits.job.constraints)


def _budget(row: Row, limits: Limits) -> Violation | None:
    return odds.budget(row, limits.job.constraints)


def _accuracy(row: Row, limits: Limits) -> Violation | None:
    return odds.accuracy(row, limits.job.constraints)


def _memory(row: Row, limits: Limits) -> Violation | None:
    limit = memory_limit(limits.job, limits.hardware, row.candidate.processes_per_node)
    if limit is None:
        return None
    high = row["memory_bytes"].high
    if high is None:
        return unchecked("memory", "memory") if limit.by_user else None
    if high <= limit.size_bytes:
        return None
    shown, bound = words.beside_limit(
        high, limit.size_bytes, words.memory, words.given_memory if limit.by_user else words.memory
    )
    text = f"memory of the fullest process, up to {shown}, is above {limit.source}, {bound}"
    needed = words.admitting_size(high)
    remedy = f"Raise constraints.memory to {needed}" if limit.by_user else f"Give each process {needed} of memory"
    return Violation(key="memory", excess=high / limit.size_bytes - 1, text=text, remedy=remedy)


def _local_batch(row: Row, limits: Limits) -> Violation | None:
    limit, local = limits.job.constraints.max_local_batch, row.candidate.local_batch
    if limit is None or local <= limit:
        return None
    text = f"local batch {local} is above constraints.max_local_batch, {limit}"
    remedy = f"Raise constraints.max_local_batch to {local}"
    return Violation(key="max_local_batch", excess=local / limit - 1, text=text, remedy=remedy)


def _alone(row: Row, limits: Limits) -> Violation | None:
    """Say where a run does not begin on one process and take others later, though the job asks for that."""
    stages = row.candidate.stages or ()
    if not limits.job.constraints.begin_alone or (stages and processes_of(stages[0]) == 1 < row.candidate.processes):
        return None
    text = "it does not begin on one process and take others later, as constraints.begin_alone asks"
    if limits.job.cluster.nodes * limits.job.cluster.processes_per_node > 1:
        how = "Set mitigation to growth, with a recipe.batch_size that leaves a larger batch to grow to"
    else:
        how = "Set mitigation to growth and give more than one process"
    remedy = f"{how}, or set constraints.begin_alone to false"
    return Violation(key="begin_alone", excess=1.0, text=text, remedy=remedy)


def _reference_accuracy(row: Row, limits: Limits) -> Violation | None:
    limit, value = limits.worst_accuracy, row["accuracy"].value
    if limit is None:
        return None
    if value is None:
        return Violation(
            key="reference_accuracy",
            excess=None,
            text="its accuracy is unknown, so it cannot be held against the reference batch's",
            remedy="Set constraints.min_accuracy or a target, or raise probe.seconds",
        )
    short = (limit - value) if limits.higher_is_better else (value - limit)
    if short <= 0:
        chance = None if limits.keeping_probability is None else limits.keeping_probability(row.candidate)
        return odds.beside_reference(chance, limits.job.constraints)
    side = "below" if limits.higher_is_better else "above"
    text = f"accuracy {value:.4f} is {side} {limit:.4f}, what the reference batch's allows"
    remedy = f"Set constraints.min_accuracy to {math.floor(value * 1000) / 1000:g} to allow it"
    if not limits.higher_is_better:
        remedy = "Set a target to allow it"
    return Violation(key="reference_accuracy", excess=short / max(abs(limit), 1e-9), text=text, remedy=remedy)


def _target(row: Row, limits: Limits) -> Violation | None:
    target = limits.job.target
    if not isinstance(target, Target) or not limits.target_in_reach:
        return None
    chance = limits.reach_probability(row.candidate)
    if chance is None:
        return None
    epochs, expected = limits.job.recipe.epochs, row["accuracy"].value
    return odds.target(chance, target, epochs, limits.job.constraints, best=limits.best_chance, expected=expected)
