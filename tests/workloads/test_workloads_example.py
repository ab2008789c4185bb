import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = """
from tula_core.job import Job
from tula_core.workloads import describe, load_workload, validate
job = Job.from_yaml("job.yaml")
workload = load_workload(job)
validate(workload)
facts = describe(workload, job)
print(facts.name, facts.train_samples, facts.sample_shape, facts.code_fingerprint)
"""


def run_example(code):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        # As for an installed command, the current folder is not on the interpreter's own path.
        [sys.executable, "-c", f"import sys; sys.path[0] = {str(ROOT)!r}\n{code}"],
        cwd=ROOT / "deployments" / "examples",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_outside_the_package_runs_from_its_folder_without_pythonpath():
    first = run_example(CODE)
    assert first.startswith("stripes 2000 (1, 16, 16) ")
    assert first == run_example(CODE)
