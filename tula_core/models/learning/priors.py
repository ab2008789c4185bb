"""Priors that are plain numbers, read from the JSON files that the package carries."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

from tula_core.errors import InputError

Prior = TypeVar("Prior")


def read_prior(path: Path, kind: type[Prior]) -> Prior:
    """Return the prior of a file.

    Parameters
    ----------
    kind
        A dataclass whose fields are all numbers; the file has an object with each of them.

    Raises
    ------
    InputError
        The file is missing, not JSON, or lacks a finite number.
    """
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        values = {name: float(data[name]) for name in names}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path.name}: a JSON object with the numbers {', '.join(names)} is needed ({error}). Learn it anew."
        ) from None
    bad = [name for name in names if not math.isfinite(values[name])]
    if bad:
        raise InputError(f"{path.name}: {bad[0]} must be finite, got {values[bad[0]]!r}. Learn it anew.")
    return kind(**values)
