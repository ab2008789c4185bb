"""Whether nodes that are processes side by side on one machine have room in its memory."""

from __future__ import annotations

from tula_core.errors import InputError
from tula_core.records import Plan, Row


def require_room(plan: Plan, row: Row) -> None:
    """Refuse to start more processes on one machine than its memory is expected to hold.

    A plan holds each node's processes against one node's memory; started side by side here, all nodes share it.

    Raises
    ------
    InputError
        The processes of all nodes need more than the machine has.
    """
    candidate, each, has = row.candidate, row["memory_bytes"].value, plan.hardware.get("memory_bytes")
    if candidate.nodes == 1 or plan.hardware.get("device") != "cpu" or each is None or has is None:
        return
    needed = candidate.processes * each
    if needed > has:
        raise InputError(
            f"nodes: the {candidate.nodes} nodes are {candidate.processes} processes on this machine, which need "
            f"{needed / 2**30:.3g} GiB together; it has {has / 2**30:.3g} GiB. "
            "Choose a row with fewer nodes or a smaller local batch, or train on real nodes."
        )
