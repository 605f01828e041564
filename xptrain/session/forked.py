"""Forks: a run that goes on from a checkpoint of another one, with a config of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xptrain.checkpoint.receipts import Loaded
from xptrain.errors import UsageError
from xptrain.provenance.sharding import initial_digests
from xptrain.session.config import flatten
from xptrain.session.readable import say
from xptrain.state.digest import digest_array
from xptrain.state.records import VariableRecord
from xptrain.tracking.durable import fsync_folder
from xptrain.tracking.folder import RunInfo


@dataclass(frozen=True)
class Fork:
    """What a run is a fork of; stands in its identity.

    Args:
        parent: Key of the other run.
        parent_id: Its MLflow run id; None when it had none yet.
        step: Step of the checkpoint.
        changes: New values of the config, by dotted name.
        initial: Digest of each of the optimizer's variables as the other run had them before its first step.
    """

    parent: str
    parent_id: str | None
    step: int
    changes: Mapping[str, Any]
    initial: Mapping[str, str]

    @classmethod
    def of(cls, info: RunInfo) -> Fork | None:
        """Return what a run is a fork of, or None."""
        record = info.setup.get("fork")
        return None if record is None else cls(**record)

    def change(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a config with the fork's values in it."""
        return changed(config, self.changes)

    def tags(self) -> dict[str, str]:
        """Return the tags by which the other run is found; MLflow's page nests the fork under it."""
        parent = {} if self.parent_id is None else {"mlflow.parentRunId": self.parent_id}
        return {"xptrain.parent": f"{self.parent} at step {self.step}", **parent}

    def adopt(self, loaded: Loaded, records: Sequence[VariableRecord]) -> Loaded:
        """Leave to the new config what it sets: variables of the optimizer that begin with another value.

        A strict restore would bring the old learning rate back. Weights and slots are the checkpoint's.

        Args:
            loaded: The checkpoint that the fork goes on from.
            records: The variables as the script made them.

        Returns:
            The checkpoint, with the values of those variables that the new config sets.
        """
        if loaded.receipt.step > self.step:
            return loaded
        own = set_anew(self.initial, records, loaded)
        if own:
            names = ", ".join(sorted(record.path for record in own))
            say(f"taken from the new config, not from the checkpoint: {names}")
        leaves = {**loaded.leaves, **{record.key: record.variable.value.copy() for record in own}}
        return Loaded(loaded.receipt, leaves, loaded.host)


def set_anew(
    initial: Mapping[str, str], records: Sequence[VariableRecord], loaded: Loaded
) -> list[VariableRecord]:
    """Return the scalars of the optimizer, such as its rate, that begin with another value than before.

    Args:
        initial: Digest of each of the optimizer's variables before the first step, as recorded.
        records: The variables as the script made them.
        loaded: The checkpoint that has other values for them.
    """
    return [
        record
        for record in records
        if record.key in initial
        and record.key in loaded.leaves
        # Slots begin with zeros; if they have other shapes now, the restore says so.
        and record.variable.shape == ()
        and digest_array(record.variable.value) != initial[record.key]
    ]


def say_what_stays(
    before: Mapping[str, Any], records: Sequence[VariableRecord], loaded: Loaded, key: str
) -> None:
    """Tell which values of the script a resume does not take, because the checkpoint has them.

    Args:
        before: Manifest of an earlier attempt.
        records: The variables as the script made them.
        loaded: The checkpoint that is gone on from.
        key: The run's key.
    """
    anew = set_anew(initial_digests(before, ("optimizer",)), records, loaded)
    if anew:
        told = (
            f"{r.path} {np.asarray(loaded.leaves[r.key]):g}, not {np.asarray(r.variable.value):g}"
            for r in anew
        )
        say(
            f"kept as in the checkpoint: {', '.join(told)}; "
            f"`xptrain fork {key} --step {loaded.receipt.step} --set NAME=VALUE` goes on with others"
        )


def prepared(home: Path) -> Path:
    """Return the folder of forks whose script has not opened them yet."""
    return home / "forks"


def begin(key: str, home: Path) -> None:
    """Let a prepared fork be a run, now that its script opens it; a script that fails before leaves no run.

    Args:
        key: What the process was told to resume.
        home: The home of all runs.
    """
    folder = prepared(home) / key
    if (folder / "run.json").is_file():
        folder.rename(home / "runs" / key)
        fsync_folder(home / "runs")


def changed(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with other values.

    Args:
        config: Nested JSON data.
        changes: Values by dotted name.

    Raises:
        UsageError: There is no such name in the config.
    """
    result = copy.deepcopy(dict(config))
    for name, value in changes.items():
        *path, last = name.split(".")
        inner: Any = result
        for part in path:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or last not in inner:
            raise UsageError(
                f"the config has no value {name!r}",
                expected=", ".join(flatten(config)) or "a run with a config",
                found=name,
                remedy="name one of these: --set NAME=VALUE",
            )
        inner[last] = value
    return result
