"""Two plain laws of step time, fitted to the same rows as Tula's: what its errors are compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, nnls

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_LIMITS = ((1e-8, None),) * 6 + ((1.0, 10.0),)


def goodput_terms(nodes: Array, processes: Array) -> tuple[Flags, Flags, Array]:
    """Return where a step synchronises within a node, where across nodes, and max(K - 2, 0), each of shape (n,)."""
    across = nodes > 1
    return (processes > 1) & ~across, across, np.asarray(np.maximum(processes - 2.0, 0.0))


def goodput_step_s(parameters: Array, nodes: Array, processes: Array, local_batch: Array) -> tuple[Array, Array]:
    """Return seconds of the gradient and of the whole step: T_grad = a_c + b_c b; (T_grad^g + T_sync^g)^(1/g).

    T_sync = 0 for one process, a + b max(K - 2, 0) otherwise, with a, b of their own inside a node and across nodes.
    Qiao et al. 2021 (Pollux), arXiv 2008.12260, eq. 8 to 12, without accumulation.

    Parameters
    ----------
    parameters
        a_c, b_c, a and b across nodes, a and b inside a node, g; shape (7,).
    nodes, processes, local_batch
        N, K on all nodes and b of one process, shape (n,).
    """
    a_c, b_c, a_n, b_n, a_r, b_r, gamma = parameters
    inside, across, more = goodput_terms(nodes, processes)
    grad = a_c + b_c * local_batch
    sync = np.where(inside, a_r + b_r * more, np.where(across, a_n + b_n * more, 1e-8))
    large = np.maximum(grad, sync)
    return grad, large * (1.0 + (np.minimum(grad, sync) / large) ** gamma) ** (1.0 / gamma)


def fit_goodput(nodes: Array, processes: Array, local_batch: Array, time_s: Array, grad_s: Array) -> Array:
    """Return the parameters of `goodput_step_s` with the least root mean square error of ln(time).

    As Pollux section 4.1 and the published code say: errors of the gradient's and of the whole step's time, small
    penalties on g - 1 and on the retrogression relative to the start of a synchronisation, L-BFGS-B with positive
    parameters; what was not seen is frozen: a_c at half the time where one batch size was, both across-node parameters
    where no second node was, the growth with K where no more than two processes were.
    """
    start = np.array([0.5 * time_s.mean(), 0.5 * (time_s / local_batch).mean(), *4 * [0.1 * time_s.mean()], 2.0])
    inside, across, more = goodput_terms(nodes, processes)
    start[[3, 5]] = 0.01 * time_s.mean()
    frozen = np.zeros(7, dtype=bool)
    if len(np.unique(local_batch)) == 1:
        start[0], frozen[0] = 0.5 * time_s.mean(), True
    if not across.any():
        start[[2, 3]], frozen[[2, 3]] = 1e-8, True
    if not (inside.any() or across.any()) or not (more > 0).any():
        start[[3, 5]], frozen[[3, 5]] = 1e-8, True

    def loss(free: Array) -> float:
        theta = start.copy()
        theta[~frozen] = free
        grad, total = goodput_step_s(theta, nodes, processes, local_batch)
        errors = np.sqrt(np.mean(np.log(grad / grad_s) ** 2)) + np.sqrt(np.mean(np.log(total / time_s) ** 2))
        penalty = 1e-3 * (theta[6] - 1.0) ** 2 + 1e-2 * ((theta[3] / theta[2]) ** 2 + (theta[5] / theta[4]) ** 2)
        return float(errors + penalty)

    limits = [limit for limit, fixed in zip(_LIMITS, frozen, strict=True) if not fixed]
    found = minimize(loss, start[~frozen], method="L-BFGS-B", bounds=limits)
    start[~frozen] = found.x
    return start


def linear_terms(nodes: Array, processes: Array, local_batch: Array) -> Array:
    """Return the terms of the linear law, shape (n, 6): 1, b, and start and growth of each kind of synchronisation."""
    inside, across, more = goodput_terms(nodes, processes)
    return np.stack([np.ones_like(local_batch), local_batch, inside, inside * more, across, across * more], axis=1)


def fit_linear(nodes: Array, processes: Array, local_batch: Array, time_s: Array) -> Array:
    """Return factors of `linear_terms`, none negative, with the least squares of relative errors.

    Lawson and Hanson 1974, *Solving Least Squares Problems*, chapter 23, on rows divided by their time.
    """
    factors, _ = nnls(linear_terms(nodes, processes, local_batch) / time_s[:, None], np.ones_like(time_s))
    return np.asarray(factors)
