"""Checkpoints that are whole or absent, and that continue a run bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tula_core.engine.assemble import Trainee, share_buffers
from tula_core.errors import InputError, RunError
from tula_core.home import open_atomic

_FORMAT = 1


def save_checkpoint(trainee: Trainee, path: Path, progress: dict[str, Any]) -> None:
    """Write weights, buffers, optimizer, scaler and ``progress`` (plain values); all processes must call it.

    Raises
    ------
    RunError
        The disk is full or the folder not writable; the checkpoint before it is still whole.
    """
    share_buffers(trainee.network, trainee.context)
    methods = _methods_state(trainee)
    failed = 0.0
    message = ""
    if trainee.context.rank == 0:
        try:
            # Straight to the file: a copy in memory would be a run's peak, which no batch size explains.
            with open_atomic(path) as file:
                torch.save({**state_of(trainee, progress), "methods": methods}, file)
        except OSError as error:
            failed, message = 1.0, str(error.strerror or error)
    if trainee.context.all_reduce_max([failed])[0]:
        raise RunError(
            f"checkpoint: {str(path)!r} could not be written ({message or 'see rank 0'}). "
            "Free disk space or set TULA_HOME to a larger disk, then resume; the checkpoint before it is kept."
        )


def is_ruined(trainee: Trainee) -> bool:
    """Return, on all processes alike, whether any weight of any of them is not finite: no weights to keep."""
    finite = torch.stack([weights.detach().isfinite().all() for weights in trainee.network.parameters()])
    return trainee.context.all_reduce_max([0.0 if bool(finite.all()) else 1.0])[0] > 0


def _methods_state(trainee: Trainee) -> list[Any]:
    """Return the methods' state, of every process where each has its own."""
    mine = trainee.methods.state()
    if not trainee.methods.own_state or trainee.context.processes == 1:
        return [mine]
    states: list[Any] = [None] * trainee.context.processes
    torch.distributed.all_gather_object(states, mine)
    return states


def state_of(trainee: Trainee, progress: dict[str, Any]) -> dict[str, Any]:
    """Return everything a run needs to go on."""
    return {
        "format": _FORMAT,
        "network": trainee.network.state_dict(),
        "optimizer": trainee.optimizer.state_dict(),
        "optimizer_kind": type(trainee.optimizer).__qualname__,
        "scaler": trainee.scaler.state_dict() if trainee.scaler is not None else None,
        "progress": progress,
    }


def load_checkpoint(trainee: Trainee, path: Path) -> dict[str, Any]:
    """Restore what `save_checkpoint` wrote on every process and return its ``progress``.

    Raises
    ------
    InputError
        The file cannot be read or belongs to another network or optimizer.
    """
    try:
        state = torch.load(path, map_location=trainee.device, weights_only=True)
        assert state["format"] == _FORMAT, f"format {state['format']}"
        restore(trainee, state)
    except Exception as error:
        raise InputError(
            f"resume: {str(path)!r} is not a checkpoint of this run ({type(error).__name__}: {error}). "
            "Start the run anew without --resume."
        ) from error
    progress: dict[str, Any] = state["progress"]
    return progress


def peek_progress(path: Path) -> dict[str, Any]:
    """Return the ``progress`` of a checkpoint; raises `InputError` where the file cannot be read."""
    try:
        progress: dict[str, Any] = torch.load(path, map_location="cpu", mmap=True, weights_only=True)["progress"]
    except Exception as error:
        raise InputError(
            f"resume: {str(path)!r} is not a checkpoint of this run ({type(error).__name__}: {error}). "
            "Start the run anew without --resume."
        ) from error
    return {"method": 0, **progress}


def take_over(trainee: Trainee, path: Path) -> dict[str, Any]:
    """Restore the weights that other methods have trained, and return their ``progress``.

    The optimizer's state is kept where the optimizer is of the same kind and holds the same parameters in the same
    groups; the state of the methods is let go.

    Raises
    ------
    InputError
        The file cannot be read or belongs to another network.
    """
    try:
        state = torch.load(path, map_location=trainee.device, weights_only=True)
        trainee.network.load_state_dict(state["network"])
        if state.get("optimizer_kind") == type(trainee.optimizer).__qualname__ and _same_groups(trainee, state):
            trainee.optimizer.load_state_dict(state["optimizer"])
        if trainee.scaler is not None and state["scaler"] is not None:
            trainee.scaler.load_state_dict(state["scaler"])
    except Exception as error:
        raise InputError(
            f"resume: {str(path)!r} is not a checkpoint of this run ({type(error).__name__}: {error}). "
            "Start the run anew without --resume."
        ) from error
    progress: dict[str, Any] = state["progress"]
    return progress


def _same_groups(trainee: Trainee, state: dict[str, Any]) -> bool:
    mine, theirs = trainee.optimizer.state_dict()["param_groups"], state["optimizer"]["param_groups"]
    return [group["params"] for group in mine] == [group["params"] for group in theirs]


def restore(trainee: Trainee, state: dict[str, Any]) -> None:
    """Set network, optimizer and scaler to ``state``."""
    trainee.network.load_state_dict(state["network"])
    trainee.optimizer.load_state_dict(state["optimizer"])
    states = state.get("methods")
    if states:
        # Another number of processes than before: what each kept for its next step is let go.
        own = trainee.context.rank if len(states) == trainee.context.processes else 0
        trainee.methods.restore(states[own])
    if trainee.scaler is not None and state["scaler"] is not None:
        trainee.scaler.load_state_dict(state["scaler"])
