"""The verbs that lead from a job to an outcome: run, plan, train, profile."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.failures import meant_error
from flows.output import check_out, plan_path, write_out
from flows.signals import stop_received
from tula_core.errors import InfeasibleError, InputError, RunError, StoppedError

if TYPE_CHECKING:
    from tula_core.job import Job
    from tula_core.records import Outcome, Plan

JobText = Annotated[str, typer.Argument(metavar="JOB", help="A YAML file or a built-in name; tula list shows them.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Override a field; may be repeated.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The file to write.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the latest unfinished run of this job.")]
Reprofile = Annotated[bool, typer.Option("--reprofile", help="Measure again, whatever was measured before.")]


def run(job: JobText, overrides: Overrides = None, resume: Resume = False, out: Out = None) -> None:
    """Run the whole pipeline as the Prefect flow.

    Prints the plan, then progress, then predicted against actual.
    """
    from tula_core.job import load_job

    check_out(out)
    asked = load_job(job, overrides or ())
    if resume:
        from tula_core import api

        api.resume_plan(asked)  # nothing to resume is said before a server is started
    from flows.live import Screen
    from flows.settings import configure
    from flows.watch import watching
    from tula_core.records import Outcome, from_json

    is_own = configure()
    with Screen(plan_file=out) as screen, watching(screen):
        screen.say("Starting Prefect")
        if is_own:
            from flows.watchdog import guard, start_servers_apart

            guard()
            start_servers_apart()
        from flows.optimize import optimize

        command = f"tula run {job}{_repeated(overrides)}"
        with _resumable(lambda: f"{command} --resume" if _has_begun(asked) else command):
            outcome = from_json(Outcome, json.dumps(optimize(asked.to_dict(), resume=resume)), source="outcome")
    _finish(outcome)


def plan(
    job: JobText,
    overrides: Overrides = None,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else on stdout.")] = False,
    profile_file: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="Use this profile and measure nothing.")
    ] = None,
    reprofile: Reprofile = False,
) -> None:
    """Profile, fit and search; train nothing.

    Prints the forecast, the knee and the choice with its reason.
    """
    if profile_file is not None and reprofile:
        raise InputError("--reprofile: given together with --profile, which measures nothing. Keep one of the two.")
    from tula_core.job import load_job
    from tula_core.records import Profile, load

    asked = load_job(job, overrides or ())
    measured = None if profile_file is None else load(Profile, profile_file)

    from flows import show
    from flows.live import Screen
    from tula_core import api

    with Screen() as screen:
        made = api.plan(asked, profile=measured, reprofile=reprofile, listener=screen.event)
    path = out or plan_path(made)
    write_out(path, made.to_json())
    if as_json:
        typer.echo(made.to_json(), nl=False)
    else:
        _print_plan(made)
    if made.choice is None:
        raise InfeasibleError(f"nothing is feasible: {made.reason} The plan is in {_short(path)}.")
    if not as_json:
        show.print_next(show.results(), f"tula train {_short(path)}")


def train(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A file that tula plan wrote.")],
    choose: Annotated[int | None, typer.Option("--choose", metavar="ROW", help="Train at this row instead.")] = None,
    resume: Resume = False,
    out: Out = None,
) -> None:
    """Train at a plan's choice, or at another row.

    Prints predicted against actual.
    """
    from tula_core.records import Plan, load, to_json

    check_out(out)
    made = load(Plan, plan_file)
    _check_row(made, choose, plan_file)

    from flows import show
    from flows.live import Screen
    from tula_core import api

    with Screen(metric=show.metric_name(made)) as screen:
        if choose is not None and not made.table[choose].feasible:
            screen.warn(f"row {choose} is infeasible: {made.table[choose].infeasible_because}")
        chosen = "" if choose is None else f" --choose {choose}"
        with _resumable(lambda: f"tula train {plan_file}{chosen} --resume"):
            outcome = api.train(made, row=choose, resume=resume, listener=screen.event)
    if out is not None:
        write_out(out, to_json(outcome))
    _finish(outcome, share=show.is_share(made))


def profile(job: JobText, overrides: Overrides = None, out: Out = None, reprofile: Reprofile = False) -> None:
    """Only measure; write the profile.

    What was measured before on this machine is taken from the cache, unless --reprofile.
    """
    from tula_core.job import load_job

    check_out(out)
    asked = load_job(job, overrides or ())
    from flows import show
    from flows.live import Screen
    from tula_core import api
    from tula_core.home import state_folder
    from tula_core.records import to_json

    with Screen() as screen:
        _, measured, cached = api.profile(asked, reprofile=reprofile, listener=screen.event)
    path = out or state_folder("profiles") / f"{asked.title}-{measured.fingerprint[:8]}.json"
    write_out(path, to_json(measured))
    console = show.results()
    show.print_profile(console, measured, cached=cached)
    console.print(f"The profile is in {_short(path)}", soft_wrap=True)
    show.print_next(console, f"tula plan {job}{_repeated(overrides)} --profile {_short(path)}")


def _print_plan(made: Plan) -> None:
    from flows import show
    from tula_core.search.table import display_rows

    show.print_plan(show.results(), made, display_rows(made))


def _check_row(made: Plan, choose: int | None, source: Path) -> None:
    if choose is not None and not 0 <= choose < len(made.table):
        raise InputError(
            f"--choose: {choose} is no row of {str(source)!r}. "
            f"Give one of 0 to {len(made.table) - 1}, as the table numbers them."
        )
    if choose is None and made.choice is None:
        raise InfeasibleError(f"{str(source)!r} holds no choice: {made.reason} Give a row with --choose.")


@contextmanager
def _resumable(command: Callable[[], str]) -> Iterator[None]:
    """Say how to go on when a signal ends what is inside."""
    try:
        yield
    except BaseException as error:
        if isinstance(meant_error(error) or stop_received(), StoppedError):
            typer.echo(f"Go on with: {command()}", err=True)
        raise


def _has_begun(asked: Job) -> bool:
    """Return whether there is something to resume: a stop while measuring leaves no run."""
    from tula_core import api

    try:
        api.resume_plan(asked)
    except InputError:
        return False
    return True


def _finish(outcome: Outcome, *, share: bool = True) -> None:
    from flows import show

    console = show.results()
    console.print()
    show.print_outcome(console, outcome, share=share)
    if outcome.status != "FINISHED":
        raise RunError(f"the run is {outcome.status}: {outcome.failure or 'no cause is known'}")
    show.print_next(console, "tula history", "tula retrain")


def _repeated(overrides: list[str] | None) -> str:
    return "".join(f" --set {shlex.quote(each)}" for each in overrides or ())


def _short(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path
