"""Explicit registries: a dictionary that refuses duplicates and answers an unknown name with the known ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from tula_core.errors import InputError, nearest

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """A read-only mapping from names to entries, built once from ``(name, entry)`` pairs.

    Parameters
    ----------
    kind
        What the entries are, used in messages, for example ``"network"``.
    entries
        The pairs; a name given twice raises ``ValueError`` at import, so it is never silently replaced.
    """

    def __init__(self, kind: str, *entries: tuple[str, T]) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}
        for name, entry in entries:
            if name in self._entries:
                raise ValueError(f"{kind} {name!r} is registered twice")
            self._entries[name] = entry

    def __getitem__(self, name: str) -> T:
        """Return the entry, or raise `InputError` naming the nearest known entry."""
        try:
            return self._entries[name]
        except KeyError:
            raise InputError(f"{self.kind}: {name!r} is unknown. {nearest(name, self._entries)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
