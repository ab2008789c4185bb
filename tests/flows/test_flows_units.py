import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows import units
from tula_core.records import Interval, figures


def test_examples_in_the_docs() -> None:
    for module, examples in ((units, 2), (figures, 5)):
        result = doctest.testmod(module)
        assert result.attempted >= examples
        assert result.failed == 0


@pytest.mark.parametrize(
    ("quantity", "value", "shown"),
    [
        ("step_time_s", 0.0123, "12.3 ms"),
        ("time_to_train_s", 59.0, "59.0 s"),
        ("time_to_train_s", 3 * 3600.0, "3.00 h"),
        ("time_to_train_s", 4 * 86400.0, "4.00 d"),
        ("node_hours", 0.01, "36.0 s"),
        ("memory_bytes", 3 * 2**30, "3.00 GiB"),
        ("cost_usd", 12.5, "$12.5"),
        ("energy_j", 7.2e6, "2.00 kWh"),
        ("epochs", 4.96, "5.0"),
        ("steps", 12345.0, "12,345"),
        ("accuracy", 0.9, "90.0 %"),
        ("accuracy", None, "-"),
        ("cost_usd", 0.0, "$0"),
        ("time_to_train_s", 0.0, "0 s"),
    ],
)
def test_units_are_those_people_use(quantity: str, value: float | None, shown: str) -> None:
    assert units.text(quantity, value) == shown


def test_a_metric_that_is_no_share_is_shown_as_it_is() -> None:
    assert units.text("accuracy", 1.5, share=False) == "1.50"


@given(st.floats(min_value=1e-9, max_value=1e15), st.sampled_from(["time_to_train_s", "memory_bytes", "cost_usd"]))
def test_numbers_stay_short_and_without_exponent(value: float, quantity: str) -> None:
    shown, between = units.span(quantity, Interval(value=value, low=value, high=value))
    assert "e" not in shown.split()[0]
    assert between.count("-") == 1


def test_a_low_end_far_below_the_value_takes_no_room() -> None:
    found = units.span("node_hours", Interval(value=1.2e-3, low=1e-9, high=4e-3))
    assert found == ("4.32 s", "0-14.4")
