import csv
import io
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import flows_samples as samples
import pytest
from flows_fakes import FakeCore
from typer.testing import CliRunner, Result

from flows.cli import app
from tula_core.errors import DivergedError, InputError, RunError, StoppedError
from tula_core.records import Outcome, Plan, Profile, load, save

REPOSITORY = Path(__file__).parents[2]
HEAVY = ("torch", "mlflow", "prefect", "optuna", "pandas", "numpy")


def tula(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def program(code: str, *arguments: str, **named) -> subprocess.CompletedProcess[str]:  # type: ignore[no-untyped-def]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False, **named)


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["--version"], ["plan", "digits-cmn"]])
def test_help_and_input_errors_wait_for_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from flows.cli import app
try:
    app({arguments!r}, prog_name="tula")
finally:
    print("loaded", [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    answer = program(code)
    assert "loaded []" in answer.stderr


def test_help_and_input_errors_answer_at_once(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("workload: [")
    for arguments in (["--help"], ["plan", "bad.yaml"]):
        # Processor time, the best of three, against several times what it takes: the machine has other work too.
        assert min(processor_s(*arguments) for _ in range(3)) < 1.5


def processor_s(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program("from flows.cli import main; main()", *arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("workload: [", ["is not YAML"]),
        ("- a", ["expected keys and values"]),
        ("workload: digits-cnn\nrecipee: {}", ["recipee", "unknown key", "'recipe'"]),
        ("workload: digits-cnn\nrecipe: {batch_size: 0}", ["recipe.batch_size", "greater than 0"]),
        ("workload: digits-cnn\ncluster: {price_per_node_hour: -1}", ["cluster.price_per_node_hour", "got -1"]),
        ("workload: digits-cnn\nconstraints: {budget_usd: 0}", ["constraints.budget_usd"]),
        ("recipe: {}", ["workload", "missing"]),
    ],
)
@pytest.mark.parametrize("verb", ["run", "plan", "profile"])
def test_a_wrong_job_is_exit_2_and_names_the_field(verb: str, text: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    answer = tula(verb, "job.yaml")
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith("error: ")
    assert answer.stderr.count("\n") == 1
    for word in words:
        assert word in answer.stderr


@pytest.mark.parametrize("arguments", [["frobnicate"], ["plan"], ["plan", "digits-cnn", "--nodes", "3"]])
def test_wrong_usage_is_exit_2(arguments: list[str]) -> None:
    assert tula(*arguments).exit_code == 2


def test_missing_files_are_exit_2(core: FakeCore) -> None:
    for arguments in (["plan", "no.yaml"], ["train", "no.json"], ["plan", "digits-cnn", "--profile", "no.json"]):
        answer = tula(*arguments)
        assert answer.exit_code == 2
        assert "no." in answer.stderr
    assert core.calls == []


def test_plan_prints_the_forecast_and_the_next_command(core: FakeCore, home: Path) -> None:
    answer = tula("plan", "digits-cnn", "--set", "probe.seconds=5", "--reprofile")
    assert answer.exit_code == 0
    assert "Choice: row 1" in answer.stdout
    [written] = (home / "plans").glob("*.json")
    assert f"Next: tula train home/plans/{written.name}" in answer.stdout
    assert load(Plan, written).to_json() == samples.plan().to_json()
    [asked] = core.named("plan")
    assert asked["job"].probe.seconds == 5
    assert asked["reprofile"]
    assert "search" in answer.stderr


def test_plan_as_json_is_all_that_is_on_stdout(core: FakeCore) -> None:
    answer = tula("plan", "digits-cnn", "--json", "--out", "p.json")
    assert answer.stdout == samples.plan().to_json() == Path("p.json").read_text()


def test_plan_from_a_profile_hands_it_over(core: FakeCore) -> None:
    save(samples.profile(), "profile.json")
    assert tula("plan", "digits-cnn", "--profile", "profile.json").exit_code == 0
    assert core.named("plan")[0]["profile"] == samples.profile()
    assert tula("plan", "digits-cnn", "--profile", "profile.json", "--reprofile").exit_code == 2


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_nothing_feasible_is_exit_3_after_the_plan_is_written(core: FakeCore, extra: list[str]) -> None:
    core.the_plan = samples.plan(feasible=False)
    answer = tula("plan", "digits-cnn", "--out", "p.json", *extra)
    assert answer.exit_code == 3
    assert json.loads(Path("p.json").read_text())["choice"] is None
    assert "nothing is feasible" in answer.stderr
    assert len(answer.stdout) > 100


def test_train_shows_progress_outcome_and_next_command(core: FakeCore) -> None:
    save(samples.plan(), "p.json")
    answer = tula("train", "p.json", "--out", "outcome.json")
    assert answer.exit_code == 0
    assert "loss 0.250, accuracy 0.930, 1,234 images/s, 12.0 s left" in answer.stderr
    assert "warning: learning rate lowered" in answer.stderr
    assert "outside" in answer.stdout
    assert "Next: tula history" in answer.stdout
    assert load(Outcome, "outcome.json").job_id == "run-1"


def test_train_takes_another_row_and_resumes(core: FakeCore) -> None:
    save(samples.plan(), "p.json")
    assert tula("train", "p.json", "--choose", "2", "--resume").exit_code == 0
    [asked] = core.named("train")
    assert (asked["row"], asked["resume"]) == (2, True)
    answer = tula("train", "p.json", "--choose", "9")
    assert answer.exit_code == 2
    assert "0 to 3" in answer.stderr


def test_train_of_a_plan_without_choice_is_exit_3(core: FakeCore) -> None:
    save(samples.plan(feasible=False), "p.json")
    assert tula("train", "p.json").exit_code == 3
    assert core.calls == []


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RunError("process 1 was killed (signal 9)"), 4, "error: process 1 was killed"),
        (DivergedError("diverged at every rate"), 4, "error: diverged"),
        (InputError("label 12 is outside 0 to 9"), 2, "error: label 12"),
        (StoppedError("stopped by SIGTERM.", 15), 143, "stopped by SIGTERM."),
        (StoppedError("stopped by SIGINT.", 2), 130, "Go on with: tula train p.json --resume"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_each_end_of_a_run_has_its_exit_code(core: FakeCore, error: BaseException, code: int, words: str) -> None:
    save(samples.plan(), "p.json")
    core.train_errors = [error]
    answer = tula("train", "p.json")
    assert answer.exit_code == code
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr


def test_an_unexpected_error_names_its_first_cause_and_keeps_the_traceback(core: FakeCore, home: Path) -> None:
    save(samples.plan(), "p.json")
    error = TypeError("second")
    error.__cause__ = LookupError("the first")
    core.train_errors = [error]
    answer = tula("train", "p.json")
    assert answer.exit_code == 4
    assert answer.stderr.splitlines()[0] == "error: LookupError: the first"
    [kept] = (home / "errors").iterdir()
    assert str(kept.relative_to(Path.cwd())) in answer.stderr
    assert "TypeError: second" in kept.read_text()


def test_a_fault_while_handling_a_user_error_is_not_blamed_on_the_user(core: FakeCore) -> None:
    save(samples.plan(), "p.json")
    error = KeyError("x")
    error.__context__ = InputError("a wrong field")
    core.train_errors = [error]
    assert tula("train", "p.json").exit_code == 4


def test_profile_is_written_and_summed_up(core: FakeCore) -> None:
    answer = tula("profile", "digits-cnn", "--out", "profile.json", "--reprofile")
    assert answer.exit_code == 0
    assert load(Profile, "profile.json") == samples.profile()
    assert core.named("profile")[0]["reprofile"]
    assert "Next: tula plan digits-cnn --profile profile.json" in answer.stdout


def test_history_as_table_and_as_csv(core: FakeCore) -> None:
    assert "-50 %" in tula("history").stdout
    rows = list(csv.DictReader(io.StringIO(tula("history", "--csv").stdout)))
    assert [row["job_id"] for row in rows] == ["run-1", "run-2"]
    assert float(rows[0]["error_pct_time_to_train_s"]) == pytest.approx(-50.0)
    assert rows[0]["actual_cost_usd"] == ""
    tula("history", "--out", "h.csv")
    assert len(Path("h.csv").read_text().splitlines()) == 3


def test_history_without_runs_says_how_to_begin(core: FakeCore) -> None:
    core.on_record = []
    answer = tula("history")
    assert answer.exit_code == 0
    assert "tula run digits-cnn" in answer.stdout


def test_not_promoted_is_done_too(core: FakeCore) -> None:
    answer = tula("retrain")
    assert answer.exit_code == 0
    assert "Not promoted: " in answer.stdout
    assert "one job is not enough" in answer.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_verb_cleanly(number: int, code: int, tmp_path: Path) -> None:
    save(samples.plan(), tmp_path / "p.json")
    program_text = """
import time
from tula_core import api
def train(*a, **k):
    try:
        print("training", flush=True)
        time.sleep(60)
    finally:
        print("put away", flush=True)
api.train = train
from flows.cli import main
main()
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", program_text, "train", "p.json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    assert child.stdout.readline() == "training\n"
    child.send_signal(number)
    out, err = child.communicate(timeout=120)
    assert child.returncode == code
    assert out == "put away\n"
    assert "--resume" in err
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    code = """
from tula_core import api
import flows_samples as samples
api.outcomes = lambda: [samples.outcome()] * 3000
from flows.cli import main
main()
"""
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{Path(__file__).parent}"}
    for extra in ([], ["--csv"]):
        command = [sys.executable, "-c", code, "history", *extra]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        err = child.stderr.read()
        child.stderr.close()
        assert child.wait(timeout=120) == 0
        assert err == b""
