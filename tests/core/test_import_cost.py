import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import tula_core", {"torch", "numpy", "pydantic", "mlflow", "prefect", "optuna"}),
        ("import tula_core; tula_core.Job", {"torch", "numpy", "mlflow", "prefect", "optuna"}),
        ("import tula_core.models.predictor", {"torch", "mlflow", "prefect", "optuna", "pandas"}),
        ("import tula_core.api", {"torch", "mlflow", "prefect", "optuna"}),
        ("import tula_core.engine.launch", {"torch", "mlflow", "prefect", "optuna"}),
    ],
)
def test_imports_load_no_more_than_they_need(statement: str, unwanted: set[str]) -> None:
    code = f"{statement}; import sys; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not unwanted & set(loaded)


def test_a_subpackage_does_not_hide_the_function_of_its_name() -> None:
    import tula_core
    import tula_core.history

    assert callable(tula_core.history)
    assert tula_core.history.__module__ == "tula_core.api"
