"""The benchmarks are run by hand; here only that they still run."""

import pytest

from tests.benchmarks import loop_overhead


def test_the_loop_overhead_is_printed_as_a_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    loop_overhead.main(["--job", "digits-cnn", "--steps", "2", "--blocks", "2", "--batch", "32"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["bare", "tula", "ratio"]
    assert float(lines[-1].split()[1]) > 0
