"""What a narrow cell of a table says of a way to train: all its methods, and its stages."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tula_core.records import Stage

WIDTH = 11
"""Columns that the table of a forecast has for methods."""


def methods_cell(names: Sequence[str], width: int = WIDTH) -> str:
    r"""Return methods joined by plus signs, in lines that end before a plus sign, or after the hyphen of a long name.

    Parameters
    ----------
    width
        Columns of a line.

    >>> methods_cell(["lars", "ema"]), methods_cell(["linear-lr", "warmup"]), methods_cell([])
    ('lars+ema', 'linear-lr\n+warmup', '')
    >>> methods_cell(["schedule-free", "sqrt-lr"])
    'schedule-\nfree\n+sqrt-lr'
    """
    lines = [""]
    for number, name in enumerate(names):
        part = f"+{name}" if number else name
        for piece in [part] if len(part) <= width else re.split("(?<=-)", part):
            if lines[-1] and len(lines[-1]) + len(piece) > width:
                lines.append("")
            lines[-1] += piece
    return "\n".join(lines)


def stages_cell(stages: Sequence[Stage]) -> str:
    r"""Return how many stages a run goes through and, where nodes or processes change, those that it begins on.

    >>> batch = {"local_batch": 8, "accumulation": 1}
    >>> alone = Stage(from_samples=0, nodes=1, processes_per_node=1, **batch)
    >>> wide = Stage(from_samples=80, nodes=2, processes_per_node=1, **batch)
    >>> stages_cell([alone, wide]), stages_cell([wide, wide]), stages_cell([wide])
    ('2 stages\nfrom 1 x 1', '2 stages', '')
    """
    if len(stages) < 2:
        return ""
    first, *others = stages
    shapes = {(stage.nodes, stage.processes_per_node) for stage in others}
    alike = shapes == {(first.nodes, first.processes_per_node)}
    return f"{len(stages)} stages" + ("" if alike else f"\nfrom {first.nodes} x {first.processes_per_node}")
