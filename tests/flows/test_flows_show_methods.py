"""The packages of methods that a plan compared, on a terminal."""

import dataclasses

import flows_samples as samples

from flows.show_methods import method_lines


def compared(name: str, *, chosen: bool, because: str | None = None) -> dict[str, object]:
    figures = {
        f"{quantity}{end}": value
        for quantity, middle in (("accuracy", 0.872), ("time_to_train_s", 37.0))
        for end, value in (("", middle), ("_low", 0.9 * middle), ("_high", 1.1 * middle))
    }
    row = {"mitigation": [name], "chosen": chosen, "feasible": because is None, "infeasible_because": because}
    return row | figures


def test_each_package_is_a_line_with_its_verdict() -> None:
    made = samples.plan()
    methods = [compared("growth", chosen=True), compared("lars", chosen=False, because="accuracy is below 0.86")]
    head, first, second = method_lines(dataclasses.replace(made, facts={**made.facts, "methods": methods}))
    assert head.startswith("Methods compared at global batch")
    assert first.startswith("- growth: accuracy 87.2 % (") and first.endswith("; chosen")
    assert second.startswith("- lars: ") and second.endswith("; accuracy is below 0.86")


def test_without_a_choice_between_packages_nothing_is_shown() -> None:
    made = samples.plan()
    alone = dataclasses.replace(made, facts={**made.facts, "methods": [compared("linear-lr", chosen=True)]})
    assert list(method_lines(made)) == [] and list(method_lines(alone)) == []
