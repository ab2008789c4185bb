"""How many bytes of tensors are alive while something runs, whoever holds them."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Watches the storages that operations make; what was there before does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs)) if _is_plain(tensor)}
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if _is_plain(tensor) and tensor.untyped_storage()._cdata not in given:
                storage = tensor.untyped_storage()
                self._alive.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)
        return found

    @property
    def now_bytes(self) -> int:
        """Bytes that are alive now."""
        self._alive = {key: (ref, size) for key, (ref, size) in self._alive.items() if not ref.expired()}
        return sum(size for _, size in self._alive.values())


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter)
