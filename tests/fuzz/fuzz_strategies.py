"""Random jobs and profiles: sound, noisy, contradictory, sparse."""

from __future__ import annotations

import dataclasses
from typing import Any

from factories import make_facts, make_job, make_pilot, make_profile, make_step
from hypothesis import strategies as st

from tula_core.job import Cluster, Constraints, Job, Recipe, Target
from tula_core.records import MemoryUse, Pilot, Profile, StepTiming

counts = st.one_of(st.integers(1, 16), st.sampled_from([24, 32, 64, 100, 127, 256, 1000]))
batches = st.one_of(counts, st.sampled_from([1009, 4096, 10**6 + 3, 10**12 - 11, 10**12]))
money = st.one_of(st.none(), st.sampled_from([1e-6, 0.4, 3.0, 98.32, 1e6]))
optional = lambda strategy: st.one_of(st.none(), strategy)  # noqa: E731


@st.composite
def clusters(draw: st.DrawFn, **fixed: Any) -> Cluster:
    fields = {
        "nodes": draw(st.sampled_from([1, 1, 2, 3, 8, 100, 4096])),
        "processes_per_node": draw(st.sampled_from([1, 2, 2, 3, 8])),
        "link_gbps": draw(optional(st.sampled_from([1e-3, 1.0, 100.0]))),
        "price_per_node_hour": draw(money),
        "spot_price_per_node_hour": draw(money),
        "billing_seconds": draw(st.sampled_from([1.0, 60.0, 3600.0])),
        "power_watts": draw(optional(st.sampled_from([1.0, 300.0]))),
    }
    return Cluster(**(fields | fixed))


@st.composite
def constraints(draw: st.DrawFn) -> Constraints:
    return Constraints(
        deadline=draw(optional(st.sampled_from([1e-3, 30.0, 600.0, 1e6]))),
        budget_usd=draw(optional(st.sampled_from([1e-6, 0.05, 20.0]))),
        memory=draw(optional(st.sampled_from([1, 2**28, 2**29, 2**34]))),
        min_accuracy=draw(optional(st.sampled_from([0.0, 0.5, 0.9, 1.0]))),
        max_local_batch=draw(optional(counts)),
    )


objectives = st.one_of(
    st.sampled_from(["knee", "time", "cost", "energy"]),
    st.fixed_dictionaries({"time": st.sampled_from([0.1, 1.0])}, optional={"cost": st.just(0.5)}),
)


@st.composite
def jobs(draw: st.DrawFn, **fixed: Any) -> Job:
    """A job with every recipe field set, as `make_plan` takes it."""
    recipe = Recipe(
        **{
            **Recipe().model_dump(),
            "batch_size": draw(batches),
            "epochs": draw(st.sampled_from([1, 2, 5, 90, 10**6])),
            "optimizer": draw(st.sampled_from(["sgd", "adam"])),
            "schedule": draw(st.sampled_from(["constant", "linear", "cosine", "step", "trapezoid"])),
        }
    )
    fields = {
        "recipe": recipe,
        "cluster": draw(clusters()),
        "objective": draw(objectives),
        "constraints": draw(constraints()),
        "target": draw(optional(st.builds(Target, value=st.sampled_from([-1.0, 0.0, 0.3, 0.85, 0.999, 1.0, 50.0])))),
        "seed": draw(st.integers(0, 3)),
    }
    return make_job(**(fields | fixed))


@st.composite
def steps(draw: st.DrawFn) -> tuple[StepTiming, ...]:
    """Timings of the truth with noise, of another truth, repeated, wildly off; one is enough."""
    rows = draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 2, 7, 16, 64, 256]), st.integers(1, 2)),
            min_size=1,
            max_size=7,
        )
    )
    noise = st.one_of(st.floats(0.8, 1.25), st.sampled_from([1e-6, 0.01, 1.0, 100.0, 1e6]))
    found = []
    for row in rows:
        made = make_step(*row, factor=draw(noise))
        share, early = draw(st.sampled_from([0.0, 0.005, 0.3, 5.0])), draw(st.sampled_from([0.0, 0.2, 60.0]))
        found.append(
            dataclasses.replace(
                made,
                step_time_error_s=share * made.step_time_s,
                block_scatter=draw(st.sampled_from([None, 0.0, 0.1, 3.0])),
                first_step_s=early,
                steps=draw(st.sampled_from([1, 2, 30])),
            )
        )
    return tuple(found)


@st.composite
def pilots(draw: st.DrawFn) -> tuple[Pilot, ...]:
    """None, sound ones, ones that learn nothing, forget, or diverged."""
    found = []
    for batch in draw(st.lists(st.sampled_from([16, 64, 64, 512]), max_size=3)):
        made = make_pilot(batch, samples=draw(st.sampled_from([640, 6000])), points=draw(st.integers(1, 6)))
        kind = draw(st.sampled_from(["sound", "chance", "forgets", "noisy", "diverged"]))
        shift = {"sound": 0.0, "chance": -1.0, "forgets": 0.0, "noisy": draw(st.floats(-0.2, 0.05)), "diverged": 0.0}
        points = [dataclasses.replace(p, metric=min(1.0, max(0.0, p.metric + shift[kind]))) for p in made.points]
        if kind == "forgets":
            points[-1] = dataclasses.replace(points[-1], metric=0.1)
        if kind == "diverged":
            points[-1] = dataclasses.replace(points[-1], metric=float("nan"), train_loss=float("inf"))
        found.append(dataclasses.replace(made, points=tuple(points), diverged=kind == "diverged"))
    return tuple(found)


@st.composite
def memory(draw: st.DrawFn) -> tuple[MemoryUse, ...]:
    """Readings that grow, do not, contradict each other, or are failures alone."""
    rows = draw(st.lists(st.tuples(st.sampled_from([1, 16, 64, 256]), st.integers(1, 2)), max_size=5))
    peaks = st.sampled_from([1, 10**6, 3 * 10**8, 4 * 10**8, 2**34, 2**45])
    return tuple(
        MemoryUse(nodes=1, processes_per_node=p, local_batch=b, peak_bytes=None, outcome="out_of_memory")
        if draw(st.integers(0, 4)) == 0
        else MemoryUse(nodes=1, processes_per_node=p, local_batch=b, peak_bytes=draw(peaks), outcome="ok")
        for b, p in rows
    )


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """A profile that measuring may really leave, however bad its day was."""
    full = make_profile()
    samples = draw(st.sampled_from([1, 2, 50, 1437, 20_000, 10**7]))
    accuracy = draw(st.booleans())
    facts = make_facts(
        train_samples=samples,
        eval_samples=draw(st.sampled_from([1, 5_000])),
        metric_ceiling=1.0 if accuracy else None,
        chance=draw(st.sampled_from([0.1, None])),
        has_batch_norm=draw(st.booleans()),
    )
    device = draw(st.sampled_from(["cpu", "cpu", "cuda"]))
    hardware = dataclasses.replace(
        full.hardware,
        device=device,
        memory_bytes=draw(st.sampled_from([2**20, 2**33, 2**40])),
        device_memory_bytes=draw(st.sampled_from([2**28, 2**34])) if device == "cuda" else None,
    )

    def some(rows: tuple[Any, ...]) -> tuple[Any, ...]:
        return draw(st.sampled_from([(), rows[:1], rows]))

    return dataclasses.replace(
        full,
        facts=facts,
        hardware=hardware,
        steps=draw(st.one_of(st.just(full.steps), steps())),
        pilots=draw(st.one_of(st.just(full.pilots), pilots())),
        memory=draw(st.one_of(st.just(full.memory), memory())),
        communication=some(full.communication),
        start_up=some(full.start_up),
        evaluation=some(full.evaluation),
        checkpoint_s=draw(st.sampled_from([None, 0.0, 0.05, 100.0])),
        noise=draw(st.sampled_from([None, full.noise])),
    )
