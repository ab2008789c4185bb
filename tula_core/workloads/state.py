"""Digests of what objects hold and networks do, beyond the source they are made of."""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import random
import re
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tula_core.workloads.data_sample import digest_of

_DEEPEST, _MOST_LINES = 8, 100_000
_VALUES = 64  # of a weight, spread over it
_LEFT_OUT = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator, logging.Logger)
_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size)


def state_digest(value: Any) -> str:
    """Return a digest of an object's type and all it holds: arguments, attributes, buffers, closures, defaults.

    The states of generators are left out: they differ from day to day.
    """
    digest = hashlib.sha256()
    for text in itertools.islice(_lines(value, 0, {}), _MOST_LINES):
        digest.update(f"{text}\n".encode())
    return digest.hexdigest()


def weights_digest(first: nn.Module, second: nn.Module) -> str:
    """Return a digest of some values of each weight and buffer that two networks made with one seed share.

    Weights that are loaded, as of a network that was trained before, decide what pilots find.
    """
    digest = hashlib.sha256()
    others = second.state_dict()
    for name, tensor in first.state_dict().items():
        if isinstance(tensor, Tensor) and isinstance(others.get(name), Tensor):
            values = _some(tensor)
            if torch.equal(values, _some(others[name])):
                digest.update(name.encode() + values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def operations(network: nn.Module, inputs: Tensor) -> str:
    """Return how often a forward pass calls each operation of torch; empty where it cannot be told.

    A network may read its depth from anywhere: what it does tells what its attributes may not.
    """
    counts: list[Counter[str]] = []
    for _ in range(2):
        counter = _Counting()
        try:
            with torch.no_grad(), counter:
                network(inputs)
        except Exception:  # trying the workload says what is wrong with it
            return ""
        counts.append(counter.counts)
    return str(sorted(counts[0].items())) if counts[0] == counts[1] else ""


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def _some(tensor: Tensor) -> Tensor:
    flat = tensor.detach().cpu().reshape(-1)
    return flat[:: max(1, len(flat) // _VALUES)].contiguous()


def _lines(value: Any, depth: int, seen: dict[int, Any]) -> Iterator[str]:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, _PLAIN):
        yield f"{kind} {value!r}"
    elif isinstance(value, Tensor):
        yield f"{kind} {digest_of(value) if value.layout is torch.strided else tuple(value.shape)}"
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{kind} {value.shape} {value.dtype} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    elif isinstance(value, _LEFT_OUT) or depth > _DEEPEST or id(value) in seen:
        yield kind
    else:
        seen[id(value)] = value  # held, so that no other object gets its number
        yield kind
        for name, part in _parts(value):
            yield name
            yield from _lines(part, depth + 1, seen)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object is made of, each part with a name."""
    if isinstance(value, Mapping):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, tuple | list | np.ndarray):
        yield from ((str(number), part) for number, part in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield "items", sorted(_address_free(part) for part in value)
    elif isinstance(value, functools.partial):
        yield from (("function", value.func), ("arguments", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("function", value.__func__), ("of", value.__self__))
    elif isinstance(value, types.FunctionType):
        yield "name", f"{value.__module__}.{value.__qualname__}"
        yield from (("defaults", value.__defaults__), ("keywords", value.__kwdefaults__))
        yield "closure", [_cell(cell) for cell in value.__closure__ or ()]
    elif isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
        yield "name", f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    else:
        yield from sorted(_attributes(value).items())


def _attributes(value: Any) -> dict[str, Any]:
    slots = (name for kind in type(value).__mro__ for name in _slots(kind))
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    found = {**held, **getattr(value, "__dict__", {})}
    return found or {"text": _address_free(value)}


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None


def _address_free(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
