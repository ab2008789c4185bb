"""What a plan says of data, network and optimizer: odd steps, rounded batches, batch norm, what really trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tula_core.engine.shares import Layout, tail_is_shared
from tula_core.job import Job
from tula_core.mitigations import MITIGATIONS, options_of
from tula_core.mitigations.batches.stages import batch_of, grows, processes_of
from tula_core.records import Candidate, Profile, Row, WorkloadFacts
from tula_core.search import words
from tula_core.search.space import LARGEST_MULTIPLE, layouts, rounded_layouts

_SHOWN = 4


def layout_of(candidate: Candidate) -> Layout:
    """Return how a candidate's global batch is spread."""
    return Layout(processes=candidate.processes, local_batch=candidate.local_batch, accumulation=candidate.accumulation)


def data_notes(rows: Sequence[Row], job: Job, facts: WorkloadFacts) -> list[str]:
    """Return what the size of the training set, the reference batch and batch norm mean for the rows of a plan."""
    return [
        *_size(job, facts),
        *_rounding(job),
        *_tails(rows, facts),
        *_norm(rows, facts),
        *_stages(rows),
        *_optimizers(rows, job),
    ]


def stage_words(candidate: Candidate) -> str:
    """Return a sentence with the batches of a choice in stages, or that there are none; empty without such methods."""
    stages = candidate.stages or ()
    if len(stages) < 2:
        idle = [name for name in candidate.mitigation if grows([name])]
        return f" At this batch {' and '.join(idle)} has nothing to grow." if idle else ""
    first, *later = stages
    moves = ", ".join(f"{batch_of(stage)} from {stage.from_samples:,}" for stage in later)
    said = f" The global batch grows on the way: {batch_of(first)}, then {moves} training samples on."
    joined = next((stage for stage in later if processes_of(stage) != processes_of(first)), None)
    if joined is None:
        return said
    return (
        f"{said} It begins on {first.nodes} x {first.processes_per_node} processes; those of the row start at "
        f"{joined.from_samples:,} samples, and nodes are paid for only while they train."
    )


def norm_warning(candidate: Candidate, facts: WorkloadFacts) -> str:
    """Return a sentence for a choice whose batch norm sees less than a process's share of a step, empty otherwise."""
    if not facts.has_batch_norm or candidate.accumulation == 1:
        return ""
    own = candidate.local_batch * candidate.accumulation
    return (
        f" Beware: batch norm takes its statistics from micro-batches of {candidate.local_batch}, not from a process's "
        f"{own} samples of a step, so accuracy may differ from the forecast."
    )


def _size(job: Job, facts: WorkloadFacts) -> Iterator[str]:
    samples = facts.train_samples
    if samples < LARGEST_MULTIPLE * job.recipe.batch_size:
        yield f"No global batch above {samples} is looked at: limited by the data set of {samples} training samples."


def _rounding(job: Job) -> Iterator[str]:
    batch = job.recipe.batch_size
    if counts := rounded_layouts(job):
        shown = counts[:_SHOWN]
        shares = ", ".join(f"{batch // count * count} on {count}" for count in shown)
        more = f" and so on up to {counts[-1]}" if len(counts) > len(shown) else ""
        yield f"The reference batch of {batch} is rounded where it does not divide: {shares} processes{more}."
    if max(nodes * processes for nodes, processes in layouts(job.cluster)) > batch:
        yield (
            f"The reference batch of {batch} cannot be spread over more than {batch} processes: with more of them the "
            "global batch is larger, at least a sample for each."
        )


def _tails(rows: Sequence[Row], facts: WorkloadFacts) -> Iterator[str]:
    samples = facts.train_samples
    batches = sorted(
        {
            row.candidate.global_batch
            for row in rows
            if row.candidate.global_batch <= samples and tail_is_shared(samples, layout_of(row.candidate))
        }
    )
    if batches:
        shown = ", ".join(str(batch) for batch in batches[:_SHOWN])
        more = f" and so on up to {batches[-1]}" if len(batches) > _SHOWN else ""
        yield (
            f"{samples} training samples leave a last step of less than two for each process at a global batch of "
            f"{shown}{more}: the last two steps of an epoch share theirs evenly, so no sample is left out."
        )


def _norm(rows: Sequence[Row], facts: WorkloadFacts) -> Iterator[str]:
    if facts.has_batch_norm and any(row.candidate.local_batch < row.candidate.global_batch for row in rows):
        yield (
            "Batch norm takes its statistics from each process's micro-batch alone. Rows of one global batch with "
            "another local batch are therefore not the same training, and accumulation does not make them so; accuracy "
            "is forecast from the global batch alone. Where that matters use a norm without batch statistics (group or "
            "layer norm), or a row without accumulation whose local batch is near the reference's."
        )


def _stages(rows: Sequence[Row]) -> Iterator[str]:
    if any(len(row.candidate.stages or ()) > 1 for row in rows):
        yield (
            "A batch that grows is forecast stage by stage: a row's step time is the mean over all steps, its batch "
            "that of the last stage, its memory that of the fullest, and the noise of its steps is taken to fall as it "
            "would under the recipe's schedule."
        )


_BROUGHT = {
    ("lars", "sgd"): "LARS, with the recipe's momentum and decay",
    ("lamb", "sgd"): "LAMB, of Adam's family, where the recipe's momentum has no meaning",
    ("lamb", "adam"): "LAMB, with the recipe's decay",
    ("lamb", "adamw"): "LAMB, with the recipe's decay",
    ("schedule-free", "sgd"): "schedule-free SGD, which holds the rate and does without the recipe's schedule",
    ("schedule-free", "adam"): "schedule-free AdamW, which holds the rate and does without the recipe's schedule",
    ("schedule-free", "adamw"): "schedule-free AdamW, which holds the rate and does without the recipe's schedule",
}
"""What trains where a method brings an optimizer of its own, by the method and the recipe's optimizer."""


def _optimizers(rows: Sequence[Row], job: Job) -> Iterator[str]:
    """Say which optimizer really trains where a method brings one in place of the recipe's."""
    own = job.recipe.optimizer
    for name in dict.fromkeys(name for row in rows for name in row.candidate.mitigation if MITIGATIONS[name].slots):
        factor = options_of(name, job.mitigation_options).get("rate_factor", 1.0)
        rate = f"the recipe's rate of {job.recipe.learning_rate:g}" + ("" if factor == 1.0 else f" times {factor:g}")
        if any(name in row.candidate.mitigation and _has_rate_rule(row.candidate.mitigation) for row in rows):
            rate += ", on top of what the rule of the rate makes of it at another batch size"
        stated = ", which was stated for another family of optimizers" if (name, own) == ("lamb", "sgd") else ""
        yield (
            f"With {name} the recipe's optimizer, {own}, is not used; what trains is {_BROUGHT[name, own]}. Its rate "
            f"is {rate}{stated}."
        )


def _has_rate_rule(names: Sequence[str]) -> bool:
    return not {"linear-lr", "sqrt-lr", "saturating-lr", "legw"}.isdisjoint(names)


def unlearnt(profile: Profile, job: Job) -> str:
    """Return the warning of a plan that knows nothing of accuracy and epochs: why, and what can be done about it."""
    epochs = job.recipe.epochs
    longer = f"Raise probe.seconds, now {job.probe.seconds:g}"
    rate = "set recipe.learning_rate to auto to have the rate measured"
    if not profile.pilots:
        why, remedy = "no pilot was run", f"{longer}, so that there is time for pilots"
    elif all(pilot.diverged for pilot in profile.pilots):
        rates = words.listed(sorted({f"{pilot.learning_rate:g}" for pilot in profile.pilots}))
        why, remedy = f"every pilot diverged, at learning rate {rates}", f"Lower recipe.learning_rate, or {rate}"
    else:
        why = f"no pilot learnt anything that {profile.facts.metric} shows above chance"
        remedy = f"{longer}, so that pilots are longer; if that does not help, {rate} and look into labels and loss"
    return (
        f"{why}, so accuracy is unknown, no batch size was judged by it, and time and cost are those of all {epochs} "
        f"epoch{'s' * (epochs != 1)}. {remedy}."
    )
