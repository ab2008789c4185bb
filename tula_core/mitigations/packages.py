"""`Packages`: what a job's ``mitigation`` stands for, one list of methods or several to choose from.

A package is a few methods that go together. Up to the reference batch there is nothing to make up for, so that ``auto``
has one there: the optimizer's rule of the rate, which lowers it for a smaller batch and leaves it at the reference
batch. Above it every package is a candidate of its own for each layout. The pilots of ``auto`` train with the first of
them, the rule and its warm-up: whether that rule holds at larger batches is then measured and not believed, and what
is known of the other packages is known relative to it. Left out is what the evidence at hand never favours: a large
batch at the small one's rate, of which the square-root rule kept more each time; AdaScale at fixed epochs; and, with
SGD, seesaw, which takes twice the steps of growth.
"""

from __future__ import annotations

from dataclasses import dataclass

Names = tuple[str, ...]

_SGD: tuple[Names, ...] = (
    ("linear-lr", "warmup"),
    ("growth",),
    ("schedule-free", "sqrt-lr"),
    ("sqrt-lr", "warmup"),
    ("lars",),
)
_ADAM: tuple[Names, ...] = (("sqrt-lr", "warmup"), ("growth",), ("lamb", "sqrt-lr", "warmup"), ("seesaw",))


@dataclass(frozen=True, kw_only=True, slots=True)
class Packages:
    """The methods that candidates train with.

    Attributes
    ----------
    small
        Up to the reference batch.
    large
        Above it, each a candidate of its own; those that are worth most come first.
    pilots
        What the pilots trained with.
    """

    small: Names
    large: tuple[Names, ...]
    pilots: Names

    @classmethod
    def alone(cls, names: Names) -> Packages:
        """Return the one package of a job that names its methods itself."""
        return cls(small=names, large=(names,), pilots=names)

    @classmethod
    def auto(cls, optimizer: str) -> Packages:
        """Return those that are looked at for a recipe's optimizer.

        >>> Packages.auto("adam").every[0], Packages.auto("adam").small
        (('sqrt-lr', 'warmup'), ('sqrt-lr',))
        """
        large = _SGD if optimizer == "sgd" else _ADAM
        return cls(small=large[0][:1], large=large, pilots=large[0])

    @property
    def several(self) -> bool:
        """Whether there is a choice."""
        return len(self.large) > 1

    @property
    def unaided(self) -> Packages:
        """What is left where no forecast of accuracy tells them apart: growth, which keeps most in all evidence."""
        growing = tuple(names for names in self.large if "growth" in names)
        return Packages(small=self.small, large=growing, pilots=self.pilots) if self.several else self

    @property
    def blind(self) -> bool:
        """Whether this is what `unaided` left."""
        return self.pilots not in self.large

    @property
    def every(self) -> tuple[Names, ...]:
        """All packages, each once."""
        return tuple(dict.fromkeys((*self.large, self.small)))

    @property
    def names(self) -> tuple[str, ...]:
        """The methods of all packages, each once."""
        return tuple(dict.fromkeys(name for package in self.every for name in package))

    def first(self, count: int) -> Packages:
        """Return the first ``count`` of those above the reference batch."""
        return Packages(small=self.small, large=self.large[:count], pilots=self.pilots)
