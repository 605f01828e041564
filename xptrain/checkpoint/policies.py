"""When to save and what to keep: small rules that compose.

`every` decides on saves, `keep` and `best` on what retention may delete. Whatever the rules say, the newest
checkpoint and the newest pinned one of each fit (what a resumed run restores that fit from) are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal

from xptrain.checkpoint.receipts import Receipt
from xptrain.errors import UsageError


@dataclass(frozen=True)
class SaveEvent:
    """A step boundary at which a checkpoint could be saved.

    Args:
        step: Train steps done since the run began.
        steps_done: Train steps of the execution that just ended (`steps_per_execution`, or fewer).
        epoch_end: True after an epoch's validation and callbacks.
        epochs_done: Epochs done in this fit, counted from the epoch number 0.
        seconds: Seconds since the last save, or since the start.
    """

    step: int
    steps_done: int = 1
    epoch_end: bool = False
    epochs_done: int = 0
    seconds: float = 0.0


def _given(rule: Any) -> dict[str, Any]:
    values = {field.name: getattr(rule, field.name) for field in fields(rule)}
    return {name: value for name, value in values.items() if value is not None}


def _check_positive(what: str, value: Any, *, whole: bool) -> None:
    kind = Integral if whole else Real
    if isinstance(value, bool) or not isinstance(value, kind) or not 0 < float(value) < math.inf:
        raise UsageError(
            f"{what} must be positive",
            expected="an integer of at least 1" if whole else "a number above 0",
            found=repr(value),
        )


@dataclass(frozen=True)
class every:
    """Save each so many epochs, steps or minutes; give exactly one of them.

    Args:
        epochs: At the end of each such epoch.
        steps: At the first step boundary at or after each multiple of this many run steps.
        minutes: At the first step boundary after so many minutes without a save.

    Raises:
        UsageError: Not exactly one is given, or it is not positive.

    Example:
        >>> every(epochs=2)
        every(epochs=2)
    """

    epochs: int | None = None
    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        given = _given(self)
        if len(given) != 1:
            raise UsageError(
                "every() takes one interval",
                expected="exactly one of epochs=, steps=, minutes=",
                found=", ".join(f"{name}={value!r}" for name, value in given.items()) or "none",
                remedy="for several intervals give several: (every(epochs=1), every(minutes=10))",
            )
        for name, value in given.items():
            _check_positive(f"every({name}=)", value, whole=name != "minutes")

    def __repr__(self) -> str:
        return f"every({', '.join(f'{name}={value!r}' for name, value in _given(self).items())})"

    def due(self, event: SaveEvent) -> bool:
        """Return whether this rule asks for a save now."""
        if self.epochs is not None:
            return event.epoch_end and event.epochs_done % self.epochs == 0
        if self.steps is not None:
            # A chunk of several steps may jump over the multiple.
            return event.step // self.steps > (event.step - event.steps_done) // self.steps
        return self.minutes is not None and event.seconds >= 60 * self.minutes


@dataclass(frozen=True, repr=False)
class keep:
    """Keep the newest `n` checkpoints.

    Args:
        n: How many, at least 1.

    Raises:
        UsageError: `n` is no integer of at least 1.

    Example:
        >>> keep(3)
        keep(3)
    """

    n: int

    def __post_init__(self) -> None:
        _check_positive("keep(n)", self.n, whole=True)

    def __repr__(self) -> str:
        return f"keep({self.n})"


@dataclass(frozen=True, repr=False)
class best:
    """Keep the `n` checkpoints with the best value of a metric; of equal values the earliest is best.

    Args:
        metric: Name in the epoch's logs, for example "val_loss".
        mode: "min" or "max".
        n: How many.

    Raises:
        UsageError: A wrong mode, an empty name, or `n` is no integer of at least 1.

    Example:
        >>> best("val_loss", "min")
        best('val_loss', 'min', n=1)
    """

    metric: str
    mode: Literal["min", "max"]
    n: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise UsageError(
                "best() needs the name of a metric",
                expected='for example "val_loss"',
                found=repr(self.metric),
            )
        if self.mode not in ("min", "max"):
            raise UsageError(
                f"best({self.metric!r}) must know which end is better",
                expected='"min" or "max"',
                found=repr(self.mode),
                remedy=f'write best({self.metric!r}, "min") if smaller is better',
            )
        _check_positive("best(n=)", self.n, whole=True)

    def __repr__(self) -> str:
        return f"best({self.metric!r}, {self.mode!r}, n={self.n})"

    def ranked(self, receipts: Iterable[Receipt]) -> list[Receipt]:
        """Return the receipts that have a value, best first; NaN is no value."""
        sign = 1.0 if self.mode == "min" else -1.0
        valued = [r for r in receipts if not math.isnan(r.metrics.get(self.metric, math.nan))]
        return sorted(valued, key=lambda r: (sign * r.metrics[self.metric], r.step))


Rule = every | keep | best


@dataclass(frozen=True)
class Policy:
    """Rules taken together.

    Args:
        rules: `every`, `keep` and `best` objects; without `keep` and `best` nothing is ever deleted.

    Raises:
        UsageError: Something else is among them, or `keep` is there twice.

    Example:
        >>> Policy((every(epochs=1), keep(3))).due(SaveEvent(step=10, epoch_end=True, epochs_done=1))
        True
    """

    rules: tuple[Rule, ...] = (every(epochs=1), keep(3))

    def __post_init__(self) -> None:
        rules: Any = self.rules
        if isinstance(rules, Rule):
            object.__setattr__(self, "rules", (rules,))
        elif not isinstance(rules, Sequence) or not all(isinstance(rule, Rule) for rule in rules):
            raise UsageError(
                "checkpoint= takes rules",
                expected="a tuple of every(...), keep(...), best(...)",
                found=repr(rules),
                remedy="for example checkpoint=(every(epochs=1), keep(3))",
            )
        else:
            object.__setattr__(self, "rules", tuple(rules))
        keeps = [rule for rule in self.rules if isinstance(rule, keep)]
        if len(keeps) > 1:
            raise UsageError("keep() is given twice", expected="at most one", found=repr(keeps))

    @property
    def wants_steps(self) -> bool:
        """Whether a checkpoint can be due inside an epoch."""
        return any(rule.epochs is None for rule in self.rules if isinstance(rule, every))

    def due(self, event: SaveEvent) -> bool:
        """Return whether a checkpoint is to be saved at this step boundary."""
        return any(rule.due(event) for rule in self.rules if isinstance(rule, every))

    def doomed(self, receipts: Iterable[Receipt]) -> list[int]:
        """Return the steps that retention may delete, oldest first.

        Args:
            receipts: Those of all good checkpoints on disk, in any order.
        """
        by_step = sorted(receipts, key=lambda receipt: receipt.step)
        if not by_step or all(isinstance(rule, every) for rule in self.rules):
            return []
        kept = {by_step[-1].step, *{r.cursor.fit: r.step for r in by_step if r.pinned}.values()}
        for rule in self.rules:
            if isinstance(rule, keep):
                kept |= {receipt.step for receipt in by_step[-rule.n :]}
            elif isinstance(rule, best):
                kept |= {receipt.step for receipt in rule.ranked(by_step)[: rule.n]}
        return [receipt.step for receipt in by_step if receipt.step not in kept]

    def unknown_metrics(self, names: Iterable[str]) -> list[str]:
        """Return the metrics that `best` rules ask for and that an epoch's logs do not have."""
        known = set(names)
        return [rule.metric for rule in self.rules if isinstance(rule, best) and rule.metric not in known]
