"""The prior of one job's step-time law: what many clusters have in common, and what is known of this job's machine."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from tula_core.models.step.communication import Link, Links, bucket_count
from tula_core.models.step.inference import LawPrior, Timings
from tula_core.models.step.law import index
from tula_core.models.step.population import load_population, prior_of

Array = NDArray[np.float64]

_CPU: dict[str, tuple[float, float]] = {
    # Processes on one CPU share cores and memory bandwidth, and nothing says where that ends.
    "floor_contention": (0.2, 0.5),
    "slope_contention": (0.2, 0.5),
    "saturation": (-3.0, 0.5),
    "alone": (0.0, 0.03),
    "exponent": (1.0, 0.04),
}
_HIDDEN_LOADING = (math.log(4.0), 0.7)  # ln(p - 1): nearly the longer of the two
_NODE_CONTENTION_SD = 0.2  # where "nodes" may be parts of one machine, as they are in a trial on one's own
_SCALE = (math.log(1.3), 0.6)  # what DDP's reduction takes beyond the bare messages: copies, launches, waiting
_NOT_RELATED_SD = 3.0  # latency and bandwidth of a known link owe nothing to the step's own time


def job_prior(timings: Timings, links: Links, *, device: str, gradient_bytes: float, loader_workers: int) -> LawPrior:
    """Return the prior for a profile's measurements.

    Parameters
    ----------
    timings
        What was measured, the parts of the steps included.
    links
        Latency and bandwidth inside and between nodes.
    device
        ``cpu`` or ``cuda``.
    gradient_bytes
        What one all-reduce of all gradients sends.
    loader_workers
        Workers that load while a step is computed; without any the two add up.
    """
    prior = prior_of(load_population(), timings)
    known = _parts(timings)
    if loader_workers > 0:
        known["loader_overlap"] = _HIDDEN_LOADING
    if device == "cpu":
        known |= _CPU
        if (timings.shapes.nodes > 1).any():
            known["node_contention"] = (0.0, _NODE_CONTENTION_SD)
    prior = _replace(prior, known)
    for name, link in (("inside", links.inside), ("between", links.between)):
        prior = _learn_link(prior, name, link, gradient_bytes, float(timings.time_s.min()))
    return prior


def _parts(timings: Timings) -> dict[str, tuple[float, float]]:
    """Return priors of the loader and the optimizer, centred on what was measured of them."""
    accumulation, batch = timings.shapes.accumulation, timings.shapes.local_batch
    tiny = 1e-4 * float(np.median(timings.time_s))
    loader = timings.parts_s["loader"] / accumulation
    optimizer = float(np.median(timings.parts_s["optimizer"]))
    return {
        "optimizer_s": (math.log(max(optimizer, tiny)), 0.5),
        "loader_s": (math.log(max(0.3 * float(loader.min()), tiny)), 1.0),
        "loader_slope_s": (math.log(max(0.7 * float((loader / batch).min()), 1e-2 * tiny)), 1.0),
    }


def _replace(prior: LawPrior, known: dict[str, tuple[float, float]]) -> LawPrior:
    """Return a prior whose named numbers are as given and independent of the others."""
    mean, covariance = prior.mean.copy(), prior.covariance.copy()
    for name, (value, sd) in known.items():
        place = index(name)
        covariance[place], covariance[:, place] = 0.0, 0.0
        mean[place], covariance[place, place] = value, sd**2
    return dataclasses.replace(prior, mean=mean, covariance=covariance)


def _learn_link(prior: LawPrior, name: str, link: Link, gradient_bytes: float, shortest_s: float) -> LawPrior:
    """Return the prior after hearing what a link's latency and bandwidth say of the reduction's two times.

    A Kalman update (Rasmussen and Williams 2006, eq. A.6) with ln(messages x latency) and ln(bytes/bandwidth) as the
    observations. Both share a factor for what the reduction takes beyond the bare messages.
    """
    places = [index(f"{name}_fixed_s"), index(f"{name}_size_s")]
    least = math.log(1e-9 * shortest_s)  # a network without gradients sends nothing: far below what could be seen
    latency = link.posterior["log_latency"] + math.log(max(bucket_count(gradient_bytes), 1e-30))
    size = math.log(max(gradient_bytes, 1e-30)) - link.posterior["log_bandwidth"]
    heard = np.maximum(np.array([latency, size]) + _SCALE[0], least)
    noise = np.diag([link.posterior.sd("log_latency") ** 2, link.posterior.sd("log_bandwidth") ** 2]) + _SCALE[1] ** 2
    covariance = prior.covariance.copy()
    covariance[places, places] += _NOT_RELATED_SD**2
    gain = np.linalg.solve(covariance[np.ix_(places, places)] + noise, covariance[places]).T
    mean = prior.mean + gain @ (heard - prior.mean[places])
    covariance = covariance - gain @ covariance[places]
    return dataclasses.replace(prior, mean=mean, covariance=(covariance + covariance.T) / 2)
