"""`elsewhere`: a predictor of a job on another node type, from the fitted one and the facts of both machines."""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import math

from tula_core.errors import InputError
from tula_core.job import Cluster, Job, NodeType, Precision, Rates
from tula_core.models.hardware.elsewhere import ElsewhereSteps, Wire
from tula_core.models.hardware.fleet_priors import PRIORS_FILE
from tula_core.models.hardware.transfer import Device, TransferPriors, log_time_ratio
from tula_core.models.power.node import fit_node_power
from tula_core.models.precision_set import Precisions
from tula_core.models.predictor import Predictor
from tula_core.models.totals import Overheads
from tula_core.records.profile import Hardware, Profile
from tula_core.records.what_if import FACTS_ALONE

_LINK_SHARE = 0.8  # of a link's nominal rate that a collective reaches
_INSIDE_LATENCY_S, _BETWEEN_LATENCY_S = 2e-5, 5e-5  # of a hop, as usual for collectives of accelerators


class ElsewherePredictor(Predictor):
    """Forecasts a job's candidates on a node type that was not measured; made by `elsewhere`."""


def elsewhere(predictor: Predictor, profile: Profile, node: NodeType) -> tuple[ElsewherePredictor, Profile, Job]:
    """Return the predictor on another node type, with the profile's facts and the job as they are there.

    Parameters
    ----------
    predictor
        Fitted to the measured machine by `tula_core.models.predictor.fit`.
    profile
        What it was fitted to; only its hardware changes, and its readings of power are left out.
    node
        One of the job's ``what_if``.

    Raises
    ------
    InputError
        The measured machine's own rates are not given, or not at the recipe's precision.
    """
    models = predictor.models
    job, facts = models.job, models.facts
    measured = _device(job.cluster, job.recipe.precision, "cluster")
    there = _device(node, job.recipe.precision, f"what_if {node.name!r}")
    priors = load_transfer_priors()
    log_ratio, log_ratio_sd = log_time_ratio(measured, there, priors)
    cluster = _cluster(job.cluster, node)
    steps = ElsewhereSteps(
        here=models.step,
        log_ratio=log_ratio,
        log_ratio_sd=log_ratio_sd,
        priors=priors,
        inside=_wire(node.inside_link_gbps, _INSIDE_LATENCY_S),
        between=_wire(None if node.link_gbps == job.cluster.link_gbps else node.link_gbps, _BETWEEN_LATENCY_S),
        shared_cores=profile.hardware.device == "cpu",
        gradient_bytes=facts.gradient_bytes,
    )
    moved_job = job.model_copy(update={"cluster": cluster, "what_if": ()})
    moved = dataclasses.replace(
        models,
        job=moved_job,
        step=steps,
        overheads=_overheads(models.overheads, log_ratio, log_ratio_sd),
        power=fit_node_power((), profile.steps, cluster),  # what meters read here says nothing of a node there
    )
    hardware = _hardware(profile.hardware, node)
    alone = Precisions(reference=job.recipe.precision)  # the rates of others were not measured there
    made = ElsewherePredictor(moved, _assumptions(profile, node, log_ratio), alone, predictor.host)
    return made, dataclasses.replace(profile, hardware=hardware, power=()), moved_job


def load_transfer_priors() -> TransferPriors:
    """Return the priors that come with the package."""
    text = importlib.resources.files("tula_core").joinpath(PRIORS_FILE).read_text(encoding="utf-8")
    return TransferPriors.from_dict(json.loads(text)["transfer"])


def _device(facts: Cluster | NodeType, precision: Precision, place: str) -> Device:
    rate, memory = facts.device_tflops, facts.device_memory_gbps
    if rate is None or memory is None:
        lacking = "device_tflops" if rate is None else "device_memory_gbps"
        raise InputError(
            f"{place}.{lacking}: not given, and what_if compares devices by it. "
            "Give the figure of its data sheet, or leave what_if out."
        )
    return Device(flops_per_s=_at(rate, precision, place) * 1e12, memory_bytes_per_s=memory * 1e9)


def _at(rate: Rates, precision: Precision, place: str) -> float:
    if not isinstance(rate, dict):
        return rate
    if precision not in rate:
        given = ", ".join(rate)
        raise InputError(
            f"{place}.device_tflops: has {given}, and the job trains with {precision}. Give its rate as well."
        )
    return rate[precision]


def _cluster(here: Cluster, node: NodeType) -> Cluster:
    return here.model_copy(
        update={
            "nodes": node.nodes,
            "processes_per_node": node.processes_per_node,
            "link_gbps": node.link_gbps,
            "price_per_node_hour": node.price_per_node_hour,
            "spot_price_per_node_hour": None,
            "power_watts": node.power_watts,
            "idle_power_watts": None,
            "power_limits_w": None,
            "spot_interruptions_per_hour": None,
            "spot_restart_seconds": None,
            "device_tflops": node.device_tflops,
            "device_memory_gbps": node.device_memory_gbps,
        }
    )


def _wire(gbps: float | None, latency_s: float) -> Wire | None:
    return None if gbps is None else Wire(latency_s=latency_s, bandwidth=_LINK_SHARE * gbps * 1e9 / 8)


def _overheads(here: Overheads, log_ratio: float, log_ratio_sd: float) -> Overheads:
    """Return the overheads with evaluation as much longer as a step; start-up and checkpoints are the host's."""
    if here.evaluation is None:
        return here
    factor, tests = math.exp(log_ratio), here.evaluation
    moved = dataclasses.replace(
        tests,
        measured=tuple((processes, seconds * factor) for processes, seconds in tests.measured),
        base_s=tests.base_s * factor,
        slope_s=tests.slope_s * factor,
        scatter=math.hypot(tests.scatter, log_ratio_sd),
    )
    return dataclasses.replace(here, evaluation=moved)


def _hardware(here: Hardware, node: NodeType) -> Hardware:
    return dataclasses.replace(
        here,
        fingerprint=f"{FACTS_ALONE}{node.name}",
        device="cuda",
        device_name=node.name,
        devices=node.processes_per_node,
        device_memory_bytes=node.device_memory,
    )


def _assumptions(profile: Profile, node: NodeType, log_ratio: float) -> tuple[str, ...]:
    factor = math.exp(log_ratio)
    change = f"{factor:.2g} times as long" if factor > 1 else f"{1 / factor:.2g} times as fast"
    notes = [
        f"nothing was measured on {node.name}: a step that keeps the device busy is taken to be {change} as here, from "
        "peak FLOP/s and memory bandwidth; the loader, launches and start-up are taken as those of this host",
        "memory, epochs and accuracy are taken as here",
    ]
    if node.processes_per_node > 1 and node.inside_link_gbps is None:
        notes.append("inside_link_gbps is not given: processes of a node are taken to slow each other as here")
    if node.nodes > 1 and node.link_gbps is None:
        notes.append("link_gbps is not given: the link between nodes is taken as here")
    if profile.hardware.device == "cpu":
        notes.append("this machine has no accelerator: carrying its times to one is a far guess")
    return tuple(notes)
