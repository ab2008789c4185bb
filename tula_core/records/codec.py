"""Reading and writing records as JSON, with one clear error where a file is not what it should be."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from tula_core.errors import InputError
from tula_core.home import write_atomic

T = TypeVar("T")

Reading = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number as training read it, which may be NaN or infinite: null in a file, and NaN again when that is read."""


_ADAPTERS: dict[str, TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind.__qualname__ not in _ADAPTERS:
        _ADAPTERS[kind.__qualname__] = TypeAdapter(kind)
    return _ADAPTERS[kind.__qualname__]


def to_json(record: Any) -> str:
    """Return indented JSON with the fields in their declared order; non-finite numbers become null.

    A record with a method ``to_dict`` decides its own layout.
    """
    kind = type(record)
    data = record.to_dict() if hasattr(record, "to_dict") else _adapter(kind).dump_python(record, mode="json")
    return json.dumps(_finite(data), indent=2) + "\n"


def from_json(kind: type[T], text: str | bytes, *, source: str) -> T:
    """Return the record in ``text``.

    Parameters
    ----------
    source
        What to call the text in an error, usually the file's name.

    Raises
    ------
    InputError
        Not JSON, a schema version other than the record's, or a field that is missing, unknown or of the wrong kind.
    """
    name = kind.__name__.lower()
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: not JSON ({error}). Give a {name} file that Tula wrote.") from None
    expected = getattr(kind, "SCHEMA_VERSION", None)
    found = data.get("schema_version") if isinstance(data, dict) else None
    if expected is not None and found != expected:
        raise InputError(
            f"{source}: schema_version is {found!r}, this release reads {name} files of version {expected}. "
            f"Make the {name} again with this release."
        )
    try:
        maker = getattr(kind, "from_dict", None)
        return maker(data) if maker is not None else _adapter(kind).validate_python(data)  # type: ignore[no-any-return]
    except InputError:
        raise
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise InputError(f"{source}: {where}: {fault['msg'].lower()}. Give a {name} file that Tula wrote.") from None
    except (LookupError, TypeError, AttributeError, ValueError, AssertionError, RecursionError) as error:
        raise InputError(
            f"{source}: not a {name} ({type(error).__name__}: {error}). Give a {name} file that Tula wrote."
        ) from None


def save(record: Any, path: str | Path) -> None:
    """Write ``record`` to ``path`` atomically."""
    write_atomic(Path(path), to_json(record))


def load(kind: type[T], path: str | Path) -> T:
    """Read a record of ``kind`` from ``path``; raises `InputError` as `from_json` does, also for an unreadable file."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"{kind.__name__.lower()}: {str(path)!r} cannot be read ({error.strerror}). Give a file that Tula wrote."
        ) from None
    return from_json(kind, text, source=str(path))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
