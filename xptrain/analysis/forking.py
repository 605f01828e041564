"""Forks: a new run from a checkpoint of another one, with a changed config.

A fork is prepared beside the runs, and becomes one when its script opens it (`session/forked.py`): a script
that fails before that leaves no run.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from xptrain.analysis.copies import copy_checkpoints, make_run
from xptrain.analysis.reading import Reading
from xptrain.checkpoint.receipts import Receipt
from xptrain.errors import CheckpointNotFoundError, TrackerError, UsageError
from xptrain.provenance.sharding import initial_digests
from xptrain.secrets.redact import redact_mapping
from xptrain.session.forked import Fork, changed, prepared
from xptrain.session.opening import user_name
from xptrain.session.settings import check_key
from xptrain.tracking import processes
from xptrain.tracking.durable import now_ms
from xptrain.tracking.folder import RunFolder, new_key


def check(reading: Reading, step: int, key: str | None) -> None:
    """Make sure that a run can be forked, before anything is made.

    Args:
        reading: The run.
        step: Step of its checkpoint.
        key: Key of the new run; None when it will be drawn.

    Raises:
        CheckpointNotFoundError: There is no such checkpoint.
        UsageError: The key cannot be used.
    """
    _checkpoint(reading, step)
    check_key(key)
    home = reading.folder.home
    _sweep(home)
    if key is None:
        return
    for folder in (home / "runs" / key, prepared(home) / key):
        if folder.exists():
            raise UsageError(
                f"a run with the key {key} exists",
                expected="a key that no run has",
                found=str(folder),
                remedy="choose another key, or leave it out to get a new one",
            )


def fork(reading: Reading, step: int, changes: Mapping[str, Any], key: str | None = None) -> RunFolder:
    """Prepare a run that goes on from a checkpoint of another one; nothing is trained yet.

    Args:
        reading: The other run.
        step: Step of its checkpoint.
        changes: New values of its config, by dotted name.
        key: Key of the new run; drawn when None.

    Returns:
        The folder of the prepared run: its checkpoints are copies, its journal is empty. This process becomes
        its script; when that ends without opening it, the next fork deletes it.

    Raises:
        CheckpointNotFoundError: There is no such checkpoint.
        UsageError: The config has no such value, or the key cannot be used.
    """
    check(reading, step, key)
    _no_secrets(changes)
    info = reading.info
    at = _checkpoint(reading, step)
    config = dict(info.setup.get("config") or {})
    new = changed(config, changes)
    key = key or new_key()
    home = reading.folder.home
    target, final = RunFolder(prepared(home) / key), RunFolder(home / "runs" / key)
    place = _place(info.checkpoint_dir, reading, final)
    record = Fork(info.key, reading.run_id, step, dict(changes), _initial(reading, at))
    setup = {name: value for name, value in info.setup.items() if name not in ("auto", "process", "place")}
    child = replace(
        info,
        key=key,
        name=key if info.name in (None, info.key) else f"{info.name} (fork)",
        created_ms=now_ms(),
        checkpoint_dir=str(place),
        user=user_name(),
        host=socket.gethostname(),
        setup={
            **setup,
            "config": new,
            "fork": asdict(record),
            "process": key,
            "place": 0,
            "prepared_by": [*processes.own(), processes.hostname()],
        },
    )
    # With the folder of the run its own checkpoints move.
    staged = target.path / "checkpoints" if place.parent == final.path else place
    try:
        make_run(target, child)
        copy_checkpoints(reading, staged, at)
    except BaseException:
        _delete(target.path, staged)
        raise
    return target


def _sweep(home: Path) -> None:
    """Delete the forks that were prepared, and whose script ended without opening them."""
    folder = prepared(home)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            info = RunFolder(path).info
        except TrackerError:
            # It is being made, or opened, right now.
            continue
        pid, started, host = info.setup["prepared_by"]
        if host == processes.hostname() and not processes.alive(pid, started):
            _delete(path, Path(info.checkpoint_dir))


def _delete(folder: Path, checkpoints: Path) -> None:
    shutil.rmtree(checkpoints, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def parse(settings: list[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `--set NAME=VALUE` means; values are JSON, or else text.

    Args:
        settings: The texts.
        config: The config that they change, for the kind of each value.

    Raises:
        UsageError: A text has no `=` or sets a secret, or a value is of another kind than the older one.
    """
    changes = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError("--set cannot be used", expected="NAME=VALUE", found=text)
        changes[name] = _value(value)
    # First: the config of a run has no secrets, so that one would only be called unknown.
    _no_secrets(changes)
    # Says which names there are.
    changed(config, changes)
    for name, now in changes.items():
        old = _get(config, name)
        numbers = isinstance(old, int | float) and isinstance(now, int | float)
        fits = numbers and isinstance(old, bool) == isinstance(now, bool)
        if not fits and old is not None and type(old) is not type(now):
            raise UsageError(
                f"the config's {name} is of another kind",
                expected=f"a value like {json.dumps(old)}",
                found=json.dumps(now),
                remedy="write text with quotes where it could be a number: --set 'name=\"1\"'",
            )
    return changes


def _no_secrets(changes: Mapping[str, Any]) -> None:
    if secret := redact_mapping(dict(changes))[1]:
        raise UsageError(
            "a secret cannot be set here, since it would be stored",
            found=", ".join(secret),
            remedy="give it to the script as the other run got it: by its environment, say",
        )


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _get(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = config[part]
    return config


def _place(checkpoint_dir: str, reading: Reading, target: RunFolder) -> Path:
    """Return where the checkpoints go: beside those of the other run, as `checkpoint_dir=` has it."""
    own = reading.folder.path / "checkpoints"
    return (
        target.path / "checkpoints"
        if Path(checkpoint_dir) == own
        else Path(checkpoint_dir).parent / target.key
    )


def _checkpoint(reading: Reading, step: int) -> Receipt:
    for receipt in reading.receipts:
        if receipt.step == step:
            return receipt
    there = ", ".join(str(receipt.step) for receipt in reading.receipts)
    raise CheckpointNotFoundError(
        f"run {reading.info.key} has no checkpoint of step {step}",
        expected=f"one of the steps {there}" if there else "a run with a checkpoint",
        found=str(step),
        remedy="keep more of them with checkpoint=(every(…), keep(n))",
    )


def _initial(reading: Reading, at: Receipt) -> dict[str, str]:
    """Return the digests of the optimizer's variables before the first step of a checkpoint's fit."""
    return initial_digests(reading.manifest(at.cursor.fit), ("optimizer",))
