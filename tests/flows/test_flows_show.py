import dataclasses
import io

import flows_samples as samples
import pytest
from rich.console import Console

from flows import artifacts, show, units
from tula_core.records import Plan, Stage


def printed(printer, *arguments, width: int = 80, **named) -> str:  # type: ignore[no-untyped-def]
    text = io.StringIO()
    printer(Console(file=text, width=width, highlight=False, markup=False), *arguments, **named)
    return text.getvalue()


@pytest.mark.parametrize("price", [None, 2.5, 0.05, 4000.0])
def test_the_forecast_fits_80_columns_with_every_number(price: float | None) -> None:
    text = printed(show.print_plan, samples.plan(price=price), [0, 1, 2, 3])
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    for figure in ("61.7 s", "49.4-74.0", "4096 x 1", "8192", "6.45 min", "512 MiB", "410-614", "97.1 %", "12.0"):
        assert figure in text
    if price is not None:
        cost = units.span("cost_usd", samples.plan(price=price).table[0]["cost_usd"])
        assert all(figure in text for figure in cost)
    assert ("node" in text.splitlines()[2]) == (price is None) or "cost" in text


def test_front_knee_choice_and_extrapolation_are_marked_and_explained() -> None:
    text = printed(show.print_plan, samples.plan(), [0, 1, 2, 3])
    assert "*KF" in text
    assert "ex" in text
    assert "* the choice, K the knee, F on the front, e step time extrapolated, x infeasible" in text
    assert "row 3 is infeasible: memory 20.1 GiB is over the limit of 8 GiB" in text
    assert samples.plan().reason in text
    assert "tula-predictor v1 (built-in)" in text


def test_no_choice_is_said() -> None:
    assert "Choice: none, nothing is feasible" in printed(show.print_plan, samples.plan(feasible=False), [0])


def test_a_cached_profile_is_said() -> None:
    assert "Measured earlier in 19.6 s" in printed(show.print_plan, samples.plan(cached=True), [0])


def test_outcome_shows_error_and_whether_it_is_inside() -> None:
    lines = printed(show.print_outcome, samples.outcome()).splitlines()
    time = next(line for line in lines if line.startswith("time to train"))
    assert time.split() == ["time", "to", "train", "42.0", "s", "33.6-50.4", "84.0", "s", "-50.0", "%", "outside"]
    assert next(line for line in lines if line.startswith("step time")).split()[-1] == "inside"
    assert not any(line.startswith("cost") for line in lines)
    assert "The target was reached." in lines


def test_a_failed_outcome_names_its_cause() -> None:
    assert "FAILED: process 1 was killed (signal 9)" in printed(show.print_outcome, samples.outcome(status="FAILED"))


def test_profile_is_summed_up() -> None:
    text = printed(show.print_profile, samples.profile(), cached=False)
    assert "Machine: 2 cores, 8.00 GiB memory, no accelerator (x86_64), 1 thread a process" in text
    assert "12.3 ms" in text
    assert "10,407" in text
    assert "19.6 s of 20.0 s" in text


def test_an_accelerator_is_named() -> None:
    gpu = {**samples.HARDWARE, "device": "cuda", "device_name": "H200", "device_memory_bytes": 139 * 2**30}
    assert "2 x H200 with 139 GiB" in show.machine(gpu)


def test_another_metric_is_no_percentage() -> None:
    made = samples.plan()
    facts = {**made.facts, "metric": "mse"}
    other = Plan(**{name: getattr(made, name) for name in Plan.__slots__} | {"facts": facts})
    text = printed(show.print_plan, other, [1])
    assert "mse" in text
    assert "0.971" in text
    assert "97.1 %" not in text


def test_another_precision_is_shown_in_its_row() -> None:
    plan = samples.plan()
    candidate = dataclasses.replace(plan.table[0].candidate, options={"precision": "bf16"})
    row = dataclasses.replace(plan.table[0], candidate=candidate)
    changed = dataclasses.replace(plan, table=(row, *plan.table[1:]))
    own, text = (printed(show.print_plan, shown, [0, 1]) for shown in (plan, changed))
    assert ("bf16" in own, "bf16" in text) == (False, True)
    assert show.setting(row).endswith(", in bf16")
    assert max(len(line) for line in text.splitlines()) <= 80


PACKAGES = (
    ("linear-lr",),
    ("linear-lr", "warmup"),
    ("schedule-free", "sqrt-lr"),
    ("lamb", "sqrt-lr", "warmup"),
)


def in_methods(*packages: tuple[str, ...], stages: tuple[Stage, ...] | None = None) -> Plan:
    """Return the plan with as many copies of its first row, which differ in their methods alone."""
    plan = samples.plan(price=2.5)
    first = plan.table[0]
    rows = [
        dataclasses.replace(first, candidate=dataclasses.replace(first.candidate, mitigation=names, stages=stages))
        for names in packages
    ]
    return dataclasses.replace(plan, table=tuple(rows))


def table_of(plan: Plan) -> list[str]:
    """Return the lines of the printed table below its head."""
    text = printed(lambda console: console.print(show.forecast_table(plan, range(len(plan.table)))))
    assert max(len(line) for line in text.splitlines()) <= 80
    return text.splitlines()[2:]


def cells_of(plan: Plan) -> list[str]:
    """Return the cell of local batch and methods of each printed row without its line breaks and blanks."""
    cells: list[str] = []
    for line in table_of(plan):
        words = line[:22].split()
        if words[:1] == [str(len(cells))]:
            cells.append("".join(words[4:]))
        else:
            cells[-1] += "".join(words)
    return cells


def test_rows_that_differ_in_a_later_method_alone_do_not_look_the_same() -> None:
    assert cells_of(in_methods(*PACKAGES)) == [f"32x1{'+'.join(names)}" for names in PACKAGES]
    assert cells_of(in_methods(*PACKAGES[:2])) == ["32x1linear-lr", "32x1linear-lr+warmup"]


def test_prefects_table_tells_the_methods_of_each_row() -> None:
    rows = [artifacts._cells(in_methods(*PACKAGES[:2], ()), index) for index in range(3)]
    assert [row["methods"] for row in rows] == ["linear-lr", "linear-lr + warmup", "none"]


def test_methods_that_all_rows_share_take_no_room_in_the_table() -> None:
    assert cells_of(in_methods(PACKAGES[1], PACKAGES[1])) == ["32x1", "32x1"]


def test_a_row_that_begins_on_fewer_processes_says_so() -> None:
    stages = tuple(
        Stage(from_samples=100 * count, nodes=1, processes_per_node=count + 1, local_batch=32, accumulation=1)
        for count in range(2)
    )
    assert cells_of(in_methods(("growth",), ("lars",), stages=stages))[0] == "32x1growth2stagesfrom1x1"
