"""What the README shows must be true."""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from flows.cli import app
from tula_core.job import Job

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text()


def test_the_job_of_the_readme_is_a_job_with_every_field() -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    shown = yaml.safe_load(text)
    job = Job.from_mapping(shown)
    assert job.constraints.deadline == 7200
    for part in ("recipe", "constraints", "probe"):
        assert set(shown[part]) == set(type(getattr(job, part)).model_fields)


@pytest.mark.parametrize("verb", ["run", "plan", "train", "profile", "history", "retrain", "list", "doctor", "clean"])
def test_the_commands_of_the_readme_have_the_options_it_names(verb: str) -> None:
    [line] = re.findall(rf"^\| `tula {verb}\b.*$", README, re.MULTILINE)
    shown = CliRunner().invoke(app, [verb, "--help"]).stdout
    for option in re.findall(r"--[a-z-]+", line):
        assert option in shown


def test_deployments_name_flows_that_exist() -> None:
    deployments = yaml.safe_load((REPOSITORY / "deployments/prefect.yaml").read_text())["deployments"]
    assert [each["entrypoint"] for each in deployments] == ["flows/optimize.py:optimize", "flows/retrain.py:retrain"]
    for each in deployments:
        path, name = each["entrypoint"].split(":")
        assert f"def {name}(" in (REPOSITORY / path).read_text()
        assert each["name"] == "tula"
