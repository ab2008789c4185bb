"""The names under which MLflow holds a job: tags, metrics and params.

Metrics share one vocabulary under three prefixes, ``predicted/``, ``actual/`` and ``error_pct/``, so that the MLflow
pages chart and compare them side by side.
"""

from __future__ import annotations

import re

JOB_ID = "tula.job_id"  # on the parent run only, so that a search by it finds exactly one run
JOB_HASH = "tula.job_hash"
ATTEMPT = "tula.attempt"
HARDWARE = "tula.hardware"
PLANNED_HARDWARE = "tula.planned_hardware"  # the plan's, where the run was on another
WORKLOAD = "tula.workload"
PREDICTOR = "tula.predictor"
ROLE = "tula.role"  # job, profile, search or train
FAILURE = "tula.failure"
INFEASIBLE = "tula.infeasible"
REGISTRATION = "tula.registration"  # of one try to register a version, by which its run is found again
TARGET_REACHED = "tula.target_reached"
CHANGED = "tula.changed"  # parameters that a later attempt ran with, where they differ from the first one's
METHOD_CHANGES = "tula.method_changes"  # methods that were dropped in training, each with what took over and why
PARENT = "mlflow.parentRunId"  # MLflow's own name: its pages draw the tree from it
RECORDED_AT = "tula/recorded_at_s"  # when the store got an outcome, which may be long after the run ended

PLAN_FILE = "plan.json"
FORECAST_FILE = "forecast.csv"
OUTCOME_FILE = "outcome.json"

PREDICTOR_NAME = "tula-predictor"
CHAMPION = "champion"
CHALLENGER = "challenger"


def predicted(quantity: str) -> str:
    """Return the metric that holds a quantity's forecast; ``.low`` and ``.high`` are appended for its interval."""
    return f"predicted/{quantity}"


def actual(quantity: str) -> str:
    """Return the metric that holds what a quantity really was."""
    return f"actual/{quantity}"


def error_pct(quantity: str) -> str:
    """Return the metric that holds 100 (predicted - actual) / actual."""
    return f"error_pct/{quantity}"


def non_finite(name: str) -> str:
    """Return the tag that says a value was not a finite number; such a value is never sent as a metric."""
    return f"tula.non_finite.{name}"


def clean_name(name: str) -> str:
    """Return ``name`` with every character that MLflow refuses in a metric's name replaced by an underscore."""
    return re.sub(r"[^\w\-. /:]", "_", name, flags=re.ASCII)
