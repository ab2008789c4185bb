"""Whether a run of a job could begin on one process and widen at all: `constraints.begin_alone` asks for it."""

from __future__ import annotations

from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.mitigations import options_of, packages_of
from tula_core.mitigations.batches.stages import Course, begun_alone, grows, staged
from tula_core.models.cost import hourly_price
from tula_core.records import Candidate
from tula_core.search import words
from tula_core.search.space import LARGEST_MULTIPLE

_LONG = 10**6
"""Reference batches in an epoch that is long enough for any stage: the job alone does not say how long its own is."""


def check_begin_alone(job: Job) -> None:
    """Refuse ``constraints.begin_alone`` where the job alone shows that no plan can keep it.

    That takes two processes, a method that grows the batch on a schedule, and a budget that pays the shortest launch on
    one process and the shortest on more. ``job`` is as a person wrote it.

    Raises
    ------
    InputError
        Names the first of these that is missing.
    """
    if not job.constraints.begin_alone:
        return
    fault = _few_processes(job) or _no_growth(job) or _short_budget(job)
    if fault is not None:
        raise InputError(
            f"constraints.begin_alone: true cannot be kept, because {fault}, or set constraints.begin_alone to false."
        )


def _few_processes(job: Job) -> str | None:
    if job.cluster.nodes * job.cluster.processes_per_node > 1:
        return None
    return (
        "cluster.nodes 1 and cluster.processes_per_node 1 are one process, and such a run takes others later. Raise "
        "one of the two to 2 at least"
    )


def _no_growth(job: Job) -> str | None:
    """Return why no package of methods grows a batch from one process to several."""
    packages = [names for names in packages_of(job).large if grows(names)]
    if not packages:
        return (
            f"mitigation {job.mitigation!r} does not grow the batch on a schedule, as growth and seesaw do. Set "
            "mitigation to growth, seesaw or auto"
        )
    if any(_widens(names, job) for names in packages):
        return None
    whys, remedies = zip(
        *(_held_back(name, job) for names in packages for name in names if grows((name,))), strict=True
    )
    remedy = " or ".join(remedies)
    return f"{words.listed(whys)}. {remedy[0].upper()}{remedy[1:]}"


def _widens(names: tuple[str, ...], job: Job) -> bool:
    """Return whether methods take a run from one process to two, were its epochs long and its largest batch allowed."""
    batch = job.recipe.batch_size
    course = Course(recipe=job.recipe, train_samples=_LONG * batch, options=job.mitigation_options)
    largest = Candidate(
        nodes=1, processes_per_node=2, local_batch=LARGEST_MULTIPLE * batch // 2, mitigation=names, accumulation=1
    )
    return begun_alone(staged(largest, course), course) is not None


def _held_back(name: str, job: Job) -> tuple[str, str]:
    """Return why a method that grows the batch does not, and the remedy."""
    if name == "seesaw":
        why = f"seesaw grows the batch where the rate falls, and recipe.schedule {job.recipe.schedule!r} keeps it"
        return why, "choose another recipe.schedule"
    until = options_of(name, job.mitigation_options)["until"]
    why = f"with mitigation_options.growth.until {until:g} growth has its largest batch from the first step on"
    return why, "raise mitigation_options.growth.until"


def _short_budget(job: Job) -> str | None:
    """Return why the budget pays no such run: its launches are billed one by one, each node for a quantum at least."""
    cluster, budget, price = job.cluster, job.constraints.budget_usd, hourly_price(job.cluster)
    if budget is None or price is None:
        return None
    quanta = 2 if cluster.processes_per_node > 1 else 3
    least = quanta * cluster.billing_seconds * price / 3600
    if budget >= least * (1 - 1e-9):
        return None
    return (
        f"its launch on one process and the one on more are billed {quanta} times cluster.billing_seconds "
        f"{cluster.billing_seconds:g} at least, {words.usd(least)} at {price:g} USD per node-hour, and "
        f"constraints.budget_usd is {budget:g}. Raise constraints.budget_usd to {words.admitting_usd(least)}"
    )
