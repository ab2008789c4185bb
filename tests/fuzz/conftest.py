"""How many random examples each property was tried on, said at the end of a run."""

from __future__ import annotations

import pytest
from fuzz_limits import EXAMPLES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts."""
    if EXAMPLES:
        terminalreporter.section("random examples")
        for name, count in sorted(EXAMPLES.items()):
            terminalreporter.write_line(f"{count:6d}  {name}")
        terminalreporter.write_line(f"{sum(EXAMPLES.values()):6d}  in all")
