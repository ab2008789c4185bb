from dataclasses import replace

import pytest
from train_helpers import hand_made_plan

from tula_core.errors import InputError
from tula_core.records import Interval
from tula_core.training.room import require_room

GIB = 2**30


def plan_on(nodes, processes, memory_gib, device="cpu"):
    plan = hand_made_plan("plain", processes=processes)
    memory = Interval(value=2.0 * GIB, low=1.9 * GIB, high=2.1 * GIB)
    candidate = replace(plan.table[0].candidate, nodes=nodes)
    row = replace(plan.table[0], candidate=candidate, forecast={**plan.table[0].forecast, "memory_bytes": memory})
    hardware = {**plan.hardware, "device": device, "memory_bytes": memory_gib * GIB}
    return replace(plan, table=(row,), hardware=hardware)


@pytest.mark.parametrize(("nodes", "fits"), [(1, True), (3, True), (4, False)])
def test_nodes_side_by_side_share_one_machines_memory(nodes, fits):
    """Two processes of 2 GiB fit a node of 12 GiB; those of four nodes on one machine do not."""
    plan = plan_on(nodes, 2, 12)
    if fits:
        assert require_room(plan, plan.table[0]) is None
    else:
        with pytest.raises(InputError, match="8 processes on this machine, which need 16 GiB together; it has 12 GiB"):
            require_room(plan, plan.table[0])


def test_devices_and_unknown_memory_are_not_counted():
    for plan in (plan_on(4, 2, 12, device="cuda"), replace(plan_on(4, 2, 12), hardware={"device": "cpu"})):
        assert require_room(plan, plan.table[0]) is None
