"""Snapshots of a fit, and the way back from one into the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from xptrain.data.source import Source
from xptrain.state.capture import capture_variables, own_copy, swap_averages
from xptrain.state.python.states import PythonState, SettingChange
from xptrain.state.restore import check_match, restore_variables
from xptrain.state.rng import capture_rng, restore_rng
from xptrain.state.snapshot import END, HOST, Cursor, Snapshot
from xptrain.state.values.codec import decode, encode
from xptrain.training.keras_backend import variables
from xptrain.training.keras_backend.live import LiveState
from xptrain.training.logs import numbers
from xptrain.training.step import constants, restore_constants


class FitState:
    """Everything of one fit that a checkpoint holds.

    Args:
        model: The model, built.
        callbacks: The callbacks in the order in which they are called, before `on_train_begin`.
        with_metrics: False where metrics begin anew before anybody reads them.
        sources: Where the batches come from, by name.
    """

    def __init__(
        self,
        model: Any,
        callbacks: Sequence[Any],
        *,
        with_metrics: bool = True,
        sources: Mapping[str, Source] = MappingProxyType({}),
    ) -> None:
        self._model = model
        self._callbacks = list(callbacks)
        self._sources = sources
        self.records = [r for r in variables.records(model) if with_metrics or r.role != "metrics"]
        self.python_state = PythonState(
            self._callbacks,
            variables.owners(model),
            others={
                f"{name} data": source.watched
                for name, source in sources.items()
                if source.watched is not None
            },
            apart=[data for source in sources.values() for data in source.watches],
            kept=[record.variable for record in variables.records(model)],
        )
        self._last: Mapping[str, Any] = {}
        self._at_snapshot: Mapping[str, Any] = {}
        self._pairs: Mapping[str, str] = {}

    @property
    def uncaptured(self) -> list[str]:
        """What moves the fit and is in no checkpoint: it lowers the grade."""
        return self.python_state.uncaptured

    def remember(self) -> None:
        """Keep a copy of the variables to fall back on, and find out what of the callbacks cannot be kept."""
        self._last = capture_variables(self.records)
        self.python_state.capture({})

    def begin_sources(self, fit: int, restored: Any) -> None:
        """Tell the sources which fit begins, and put them where they were at a checkpoint.

        Args:
            fit: Number of the fit.
            restored: The `Restored` checkpoint, or None.
        """
        known = None if restored is None else restored.host.get("sources")
        states = {} if known is None else decode(known, restored.leaves)
        for name, source in self._sources.items():
            source.begin(fit)
            if states.get(name) is not None:
                source.set_state(states[name])

    def forget_last(self) -> None:
        """Let go of the copy to fall back on, before another is made: two would cost a state more memory."""
        self._last = {}

    def snapshot(
        self,
        fit: int,
        epoch: int,
        batch: int,
        step: int,
        metrics: Mapping[str, Any] | None = None,
        logs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Snapshot:
        """Return the state now, with the model's variables attached.

        Args:
            fit: Number of the fit.
            epoch: Epoch of the next batch.
            batch: Batches of that epoch already trained.
            step: Train steps done in the run.
            metrics: Logs of the epoch that ended here.
            logs: Logs of the last step, where the epoch may end with it.
        """
        self.forget_last()
        leaves = self._last = capture_variables(self.records)
        self._at_snapshot = {record.key: record.variable.value for record in self.records}
        pairs = self._pairs = variables.average_pairs(self._model, self._callbacks)
        host_arrays: dict[str, Any] = {}
        host = {**self._host(host_arrays), "averages_in_model": bool(pairs)}
        host["logs"] = encode(dict(logs), host_arrays, "logs")
        return Snapshot(
            step=step,
            cursor=Cursor(fit, epoch, batch),
            # A checkpoint holds the raw weights, also when averages stand in for them now.
            leaves={**swap_averages(leaves, pairs), **host_arrays},
            host=host,
            metrics=numbers(metrics or {}),
        )

    def _host(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """Return what is not on the device, as JSON data; arrays in it are put aside."""
        return {
            "python": self.python_state.capture(arrays),
            "rng": _capture_rng(arrays),
            "sources": self._capture_sources(arrays),
            "constants": encode(constants(self._model), arrays, "constants of the steps"),
        }

    def with_end(self, before: Snapshot, *, stopped: bool) -> Snapshot:
        """Return the last snapshot of a fit: the state after its last epoch, and after `on_train_end`.

        The first is what more epochs go on from; the second is what the script sees after the fit. Only
        variables that differ are kept twice.

        Args:
            before: The snapshot taken before `on_train_end`.
            stopped: Whether a callback ended the fit.
        """
        host_arrays: dict[str, Any] = {
            key: value for key, value in before.leaves.items() if key.startswith(HOST)
        }
        end = self._host(host_arrays)
        # Exchanged in the snapshot, so that the pair is not what the model holds although it did not change.
        exchanged = self._pairs.keys() | set(self._pairs.values())
        changed = {
            END + record.key: own_copy(record.variable.value)
            for record in self.records
            if record.key in exchanged or record.variable.value is not self._at_snapshot.get(record.key)
        }
        return replace(
            before,
            cursor=replace(before.cursor, done=True),
            leaves={**before.leaves, **host_arrays, **changed},
            host={**before.host, "end": end, "stopped": stopped},
        )

    def restore(self, restored: Any, prepared: Sequence[Any]) -> list[SettingChange]:
        """Write a checkpoint into model, callbacks and host generators; returns changed callback settings.

        Args:
            restored: A `Restored` checkpoint.
            prepared: What `PythonState.prepare` returned.

        Raises:
            RestoreMismatchError: If the checkpoint is of another model; then nothing was written.
        """
        return self._prepare(restored, restored.host, {}, prepared)()

    def prepare_restore(self, restored: Any) -> Callable[[], Any]:
        """Return what writes a checkpoint when it is called; raises as `restore` does."""
        return self._prepare(restored, restored.host, {}, ())

    @staticmethod
    def logs_in(restored: Any) -> dict[str, Any]:
        """Return the logs of the step before a checkpoint, where its epoch may have ended with it."""
        logs: dict[str, Any] = decode(restored.host.get("logs", {}), restored.leaves)
        return logs

    def restore_end(self, restored: Any) -> None:
        """Write what a finished fit ended with; see `restore`."""
        changed = {key[len(END) :]: value for key, value in restored.leaves.items() if key.startswith(END)}
        host = {**restored.host, **restored.host["end"], "averages_in_model": False}
        self._prepare(restored, host, changed, (), finished=True)()
        self._model.stop_training = restored.host["stopped"]

    def rescue(self, live: LiveState | None) -> bool:
        """Leave the model usable after an error: newest values if they exist, else the last snapshot.

        Returns:
            True when it is the last snapshot.
        """
        if live is None:
            return False
        if live.lost:
            live.forget()
            for record in self.records:
                record.variable.assign(own_copy(self._last[record.key]))
            return True
        live.close()
        return False

    def _capture_sources(self, host_arrays: dict[str, Any]) -> Any:
        states = {name: source.get_state() for name, source in self._sources.items()}
        return encode(states, host_arrays, "data")

    def _prepare(
        self,
        restored: Any,
        host: Mapping[str, Any],
        changed: Mapping[str, Any],
        prepared: Sequence[Any],
        *,
        finished: bool = False,
    ) -> Callable[[], list[SettingChange]]:
        entries = _matched(host["python"]["callbacks"], self.python_state.names)
        leaves = {key: value for key, value in restored.leaves.items() if not key.startswith((HOST, END))}
        leaves.update(changed)
        if host["averages_in_model"]:
            leaves = swap_averages(leaves, variables.all_average_pairs(self._model))
        # Everything is made ready before anything is written: a restore is whole or does not happen.
        check_match(self.records, leaves)
        decoded = self.python_state.decode(
            {**host["python"], "callbacks": entries}, restored.leaves, strict=not finished
        )
        baked_in = decode(host.get("constants", {}), restored.leaves)

        def write() -> list[SettingChange]:
            restore_variables(self.records, leaves)
            variables.finish_restore(self._model)
            restore_constants(self._model, baked_in)
            changes = self.python_state.apply(decoded, prepared)
            # Keras's generator is made here if there is none yet, with a seed drawn from Python's.
            variables.set_global_seed(decode(host["rng"]["keras"], restored.leaves))
            restore_rng(host["rng"], restored.leaves)
            return changes

        return write


def _capture_rng(host_arrays: dict[str, Any]) -> dict[str, Any]:
    return {**capture_rng(host_arrays), "keras": encode(variables.global_seed(), host_arrays, "keras.random")}


def _matched(entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return one entry for each callback: the next of its class, or an empty one for a callback that is new.

    Whoever watches the fit has refused other callbacks, unless the user allowed them.
    """
    left = list(entries)
    matched: list[Mapping[str, Any]] = []
    for name in names:
        entry = next((entry for entry in left if entry["class"] == name), None)
        if entry is not None:
            left.remove(entry)
        matched.append(entry or {"class": name, "settings": {}, "state": {}})
    return matched
