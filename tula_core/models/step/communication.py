"""All-reduce time from latency and bandwidth, learnt from measured messages, from link facts or from assumptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.inference.fitting import Posterior, Prior, fit_map
from tula_core.records.profile import CommunicationTiming

Array = NDArray[np.float64]

_FIRST_BUCKET_BYTES = 2**20
_BUCKET_BYTES = 25 * 2**20
_TIMING_NOISE = 0.15  # log standard deviation of one all-reduce median on a shared machine
_LINK_SHARE = 0.8  # of a link's nominal rate that a collective reaches


def ring_all_reduce_s(processes: Array, message_bytes: Array, latency_s: Array, bandwidth: Array) -> Array:
    """Return seconds of one ring all-reduce: 2(K-1) alpha + 2 (K-1)/K bytes/bandwidth.

    Patarasuk and Yuan 2009, J. Parallel Distrib. Comput. 69(2), section 3; alpha-beta model of Thakur et al. 2005.

    Parameters
    ----------
    processes
        K, at least 1; one process communicates nothing.
    message_bytes
        Size of the reduced buffer.
    latency_s
        alpha, seconds of one hop.
    bandwidth
        Bytes per second of the slowest link in the ring.
    """
    others = np.maximum(processes - 1.0, 0.0)
    return np.asarray(2.0 * others * latency_s + 2.0 * others / np.maximum(processes, 1.0) * message_bytes / bandwidth)


def bucket_count(gradient_bytes: float) -> int:
    """Return how many all-reduces a step makes: a first bucket of 1 MiB, then 25 MiB each (Li et al. 2020, 2006.15704).

    >>> bucket_count(4 * 2**20)
    2
    """
    if gradient_bytes <= 0:
        return 0
    return 1 + math.ceil(max(gradient_bytes - _FIRST_BUCKET_BYTES, 0) / _BUCKET_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What is known of one kind of link; ``posterior`` holds ``log_latency`` and ``log_bandwidth`` (s, bytes/s)."""

    posterior: Posterior
    measured: bool
    assumption: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """The link between processes of one node, and the one between nodes."""

    inside: Link
    between: Link


def fit_links(rows: Sequence[CommunicationTiming], *, device: str, link_gbps: float | None) -> Links:
    """Return latency and bandwidth inside a node and between nodes.

    Measured messages decide where there are any; between nodes then ``link_gbps`` does, else an assumed 10 Gbit/s with
    a wide interval.
    """
    inside = _inside_prior(device)
    between, assumption = _between_prior(link_gbps)
    return Links(
        inside=_fit_link(
            [row for row in rows if row.nodes == 1 and row.processes_per_node > 1],
            inside,
            "communication inside a node was not measured: taken as usual for this kind of device",
        ),
        between=_fit_link([row for row in rows if row.nodes > 1], between, assumption),
    )


def _inside_prior(device: str) -> Prior:
    latency_s, bandwidth = (2e-5, 5e10) if device == "cuda" else (1e-4, 2e9)
    return Prior.of(log_latency=(math.log(latency_s), 1.5), log_bandwidth=(math.log(bandwidth), 1.5))


def _between_prior(link_gbps: float | None) -> tuple[Prior, str]:
    rate, sd = (link_gbps, 0.3) if link_gbps is not None else (10.0, 1.2)
    prior = Prior.of(log_latency=(math.log(5e-5), 1.0), log_bandwidth=(math.log(_LINK_SHARE * rate * 1e9 / 8), sd))
    if link_gbps is not None:
        return prior, f"communication between nodes taken from link_gbps = {link_gbps:g}, of which 80 % is used"
    return prior, "communication between nodes was not measured and link_gbps is not given: 10 Gbit/s assumed"


def _fit_link(rows: Sequence[CommunicationTiming], prior: Prior, assumption: str) -> Link:
    if not rows:
        posterior = Posterior(names=prior.names, mode=prior.mean, covariance=np.diag(prior.sd**2), scatter=1.0)
        return Link(posterior=posterior, measured=False, assumption=assumption)
    processes = np.array([row.nodes * row.processes_per_node for row in rows], dtype=float)
    size = np.array([row.message_bytes for row in rows], dtype=float)
    log_time = np.log([row.time_s for row in rows])

    def residuals(theta: Array) -> Array:
        latency, bandwidth = np.exp(theta)
        return (np.log(ring_all_reduce_s(processes, size, latency, bandwidth)) - log_time) / _TIMING_NOISE

    # Measured times overrule what is usual, however far off: the prior only has to keep one size from fixing both.
    wide = Prior(names=prior.names, mean=prior.mean, sd=np.maximum(prior.sd, 2.0))
    return Link(posterior=fit_map(residuals, wide), measured=True, assumption=None)
