"""The text around a job: reading it as strict YAML, and saying in one sentence what is wrong with it."""

from __future__ import annotations

import re
import reprlib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from tula_core.errors import nearest

MOST_BYTES = 256 * 1024  # a job is a page; YAML reads a MiB in seconds, and such a file is another kind of file

_short = reprlib.Repr()  # a few lines of aliases can stand for gigabytes of values
_short.maxstring = _short.maxother = 120


class NotYamlError(ValueError):
    """The text is not YAML as a job may use it; the message says where."""


class _StrictLoader(yaml.SafeLoader):
    """YAML with text as keys, each once: the last of two equal keys would win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of ``node``; raise where a key is no text or is given twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            tag = key.tag.rpartition(":")[2]
            if tag == "merge":
                continue
            if tag != "str":
                raise yaml.constructor.ConstructorError(None, None, "found a key that is no text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"found {key.value!r} twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read(path: Path) -> str:
    """Return the text of a file.

    Raises
    ------
    OSError, ValueError
        It cannot be read, is no text, or is larger than a job can be.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES // 1024} KiB")
    return content.decode("utf-8-sig")


def parse(text: str) -> Any:
    """Return the value of YAML text; raises `NotYamlError` with the place and what is wrong there."""
    try:
        return yaml.load(text, _StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise NotYamlError(place + " ".join(str(error.problem or error.context).split())) from None
    except yaml.YAMLError as error:
        raise NotYamlError(" ".join(str(error).split())) from None
    except RecursionError:
        raise NotYamlError("it is nested too deeply") from None
    except ValueError as error:  # a date or a number that looks right and is none, such as 2020-13-45
        raise NotYamlError(str(error)) from None


def explain(model: type[BaseModel], error: ValidationError) -> str:
    """Return one sentence for the first fault: field, value, what is allowed, remedy."""
    faults = error.errors(include_url=False)
    fault = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])
    if isinstance(fault["input"], dict):  # of a field with several forms, the one that was meant
        same = [f for f in faults if f["loc"][:1] == fault["loc"][:1]]
        fault = max(same, key=lambda f: len(f["loc"]))
    path = [
        str(part)
        for part in fault["loc"]
        if not re.match(r"function-|constrained-|literal\[|dict\[|list\[|Target|str$|\[key\]", str(part))
    ]
    field = ".".join(path)
    if fault["type"] == "extra_forbidden":
        return f"{field}: unknown key. {nearest(path[-1], _known_keys(model, path[:-1]))}"
    info = _part(model, path[:-1]).model_fields.get(path[-1]) if path else None
    if fault["type"] == "missing":
        return f"{field}: missing. Give {(info and info.description) or 'it a value'}."
    if fault["type"] in ("model_type", "model_attributes_type"):
        keys = ", ".join(_known_keys(model, path))
        return f"{field}: found {_short.repr(fault['input'])}, keys and values are needed. Write some of {keys}."
    message = str(fault["msg"]).removeprefix("Value error, ")
    if not path:
        return f"{message}."
    if fault["type"] == "value_error" and re.match(r"\w+: ", message):  # of a whole part: it names field and remedy
        return f"{field}.{message}."
    message = message[:1].lower() + message[1:]
    default = "" if info is not None and info.is_required() else " or leave it out for the default"
    return f"{field}: {message}, got {_short.repr(fault['input'])}. Mend this field{default}."


def _known_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    return list(_part(model, path).model_fields)


def _part(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    """Return the part of a job that a path leads to."""
    here = model
    for part in path:
        if part.isdigit():  # a place in a list
            continue
        info = here.model_fields.get(part)
        kinds = [info.annotation, *getattr(info.annotation, "__args__", ())] if info is not None else []
        here = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), model)
    return here
