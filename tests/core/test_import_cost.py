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


def test_no_public_name_is_hidden_by_a_subpackage() -> None:
    """Importing a subpackage sets its name on the package, in place of a function of that name."""
    import pkgutil

    import tula_core

    assert not set(tula_core.__all__) & {module.name for module in pkgutil.iter_modules(tula_core.__path__)}
