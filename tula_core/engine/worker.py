"""Entry of a worker process: ``python -m tula_core.engine.worker CONFIG``, or the same module under ``torchrun -m``.

Reads the config, joins the other ranks, calls the entry function, writes rank 0's result. Never imports Prefect, MLflow
or Optuna.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from tula_core.engine.ending import end_process
from tula_core.engine.failures import record_failure
from tula_core.errors import StoppedError
from tula_core.home import write_atomic


def main(argv: list[str]) -> int:
    """Run the task of ``argv[1]`` and return the exit code."""
    path = Path(argv[1])
    rank = int(os.environ.get("RANK", "0"))
    context = None
    try:
        config = json.loads(path.read_text())
        from tula_core.engine.context import WorkerContext

        context = WorkerContext(config, path.parent)
        result = _entry(config["entry"])(context, config["payload"])
        if rank == 0:
            write_atomic(path.parent / "result.json", json.dumps(result))
    except BaseException as error:  # whatever it is, the parent must hear of it
        failure = record_failure(path.parent, rank, error)
        print(failure.traceback, file=sys.stderr, flush=True)
        return error.exit_code if isinstance(error, StoppedError) else 1
    finally:
        if context is not None and sys.exc_info()[0] is None:
            context.close()
    return 0


def _entry(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    code = main(sys.argv)
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip interpreter shut-down: after a failure it can wait for peers that are gone.
    end_process(code)
