from __future__ import annotations

import dataclasses
import io

import flows_samples as samples
from rich.console import Console

from flows import show, units
from flows.show_what_if import what_if_lines
from tula_core.records import Plan, WhatIf


def answered(**changes: object) -> Plan:
    made = samples.plan(price=2.5)
    answer = WhatIf(
        name="big-node", choice=made.table[1], reason="It is faster.", assumptions=("Nothing was measured.",)
    )
    return dataclasses.replace(made, what_if=(dataclasses.replace(answer, **changes),))


def test_each_node_type_has_a_line_beside_the_measured_choice() -> None:
    plan = answered()
    head, measured, other, assumed = what_if_lines(plan)
    assert "not measured" in head
    assert measured.startswith("- this machine: ")
    assert other.startswith("- big-node: ")
    assert other.endswith("not measured, from its facts")
    for name in ("time_to_train_s", "cost_usd"):
        value, between = units.span(name, plan.table[1][name])
        assert f"{value} ({between})" in other
    assert assumed == "  assumed: Nothing was measured."


def test_what_is_assumed_of_all_node_types_is_said_once() -> None:
    plan = answered(assumptions=("of this one", "of both"))
    other = dataclasses.replace(plan.what_if[0], name="small-node", assumptions=("of both",))
    lines = list(what_if_lines(dataclasses.replace(plan, what_if=(*plan.what_if, other))))
    assert [line.split(":")[0] for line in lines[2:]] == ["- big-node", "  assumed", "- small-node", "  assumed of all"]
    assert lines[3] == "  assumed: of this one" and lines[-1] == "  assumed of all: of both"


def test_a_node_type_where_nothing_is_feasible_says_so() -> None:
    *_, line = what_if_lines(answered(choice=None, reason="No memory suffices.", assumptions=()))
    assert line == "- big-node: nothing is feasible. No memory suffices."


def test_the_plan_shows_the_lines_only_where_there_are_any() -> None:
    for plan, shown in ((answered(), True), (samples.plan(), False)):
        text = io.StringIO()
        show.print_plan(Console(file=text, width=80, highlight=False, markup=False), plan, [0, 1])
        assert ("big-node" in text.getvalue()) == shown
        assert max(len(line) for line in text.getvalue().splitlines()) <= 80
