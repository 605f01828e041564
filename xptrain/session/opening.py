"""Opening a run: its folder, its lock, its journal, what was recorded before and what is recorded now."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xptrain.checkpoint.lock import RunLock
from xptrain.errors import CheckpointNotFoundError, CheckpointWriteError, RunLiveError, UsageError
from xptrain.provenance import summary
from xptrain.provenance.diff import compare as diff
from xptrain.provenance.diff.difference import Difference
from xptrain.provenance.manifest import Capture, capture_static
from xptrain.secrets.redact import redact_mapping
from xptrain.session import identity, replay
from xptrain.session.config import flatten
from xptrain.session.forked import Fork
from xptrain.session.manifests import Manifests
from xptrain.session.settings import Settings
from xptrain.tracking.attempts import is_live, run_state
from xptrain.tracking.durable import now_ms
from xptrain.tracking.finding import home as runs_home
from xptrain.tracking.folder import RunFolder, RunInfo, create
from xptrain.tracking.stores import check_store, mask, unmask


@dataclass(frozen=True)
class Found:
    """A run that is about to be opened.

    Args:
        folder: Its folder.
        config: Its config, as JSON data.
        seed: Its seed.
        resumed: True when it existed before.
        attempts: Attempts so far.
        uri: Complete tracking URI; the recorded one has its password masked.
        offered: Config that the script gave to `run()`, with what a fork changes; None without any.
        fork: What the run is a fork of, or None.
    """

    folder: RunFolder
    config: dict[str, Any]
    seed: int
    resumed: bool
    attempts: int
    uri: str
    offered: dict[str, Any] | None = None
    fork: Fork | None = None


def find_or_create(settings: Settings) -> Found:
    """Return the run that `settings` mean; a new one gets its folder.

    Raises:
        RunNotFoundError: If the run to resume does not exist.
        RunLiveError: If another process trains it.
        TrackerError: If the tracking store or the folder cannot be used.
    """
    home = runs_home()
    folder, key = identity.target(settings, home)
    if folder is not None:
        return _existing(folder, settings)
    if (rehearsal := replay.ordered()) is not None:
        # All that it leaves behind lies in its own home.
        settings = replace(settings, tracking_uri=None, checkpoint_dir=None)
    store = check_store(settings.tracking_uri, home)
    seed = settings.seed
    if seed is None and rehearsal is not None:
        seed = rehearsal.orders.seed
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "little")
    config = settings.config or {}
    name, place = identity.PROCESS.next_place()
    checkpoint_dir = settings.checkpoint_dir / key if settings.checkpoint_dir else None
    if checkpoint_dir is not None:
        _check_empty(checkpoint_dir)
    script = sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c") else None
    info = RunInfo(
        key=key,
        experiment=settings.experiment,
        # The key rather than a drawn name: it is what every command and message calls the run.
        name=settings.name or key,
        created_ms=now_ms(),
        tracking_uri=mask(store.uri),
        artifact_location=store.artifact_location,
        checkpoint_dir=str(checkpoint_dir or home / "runs" / key / "checkpoints"),
        description=settings.description,
        script=str(Path(script).absolute()) if script else None,
        argv=tuple(_shown_arguments()),
        cwd=str(Path.cwd()),
        user=user_name(),
        host=socket.gethostname(),
        setup={
            "seed": seed,
            "config": redact_mapping(config)[0],
            "process": name,
            "place": place,
            "auto": identity.automatic_id(settings),
        },
    )
    folder = create(info, home)
    return Found(folder, config, seed, resumed=False, attempts=0, uri=store.uri, offered=settings.config)


def _check_empty(folder: Path) -> None:
    """Make sure that a new run does not go on from what another one of its key has left."""
    try:
        found = sorted(path.name for path in folder.iterdir())
    except OSError:
        return
    if found:
        raise UsageError(
            "the checkpoint folder of this new run is that of another run",
            expected=f"no folder {folder}, or an empty one",
            found=", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else ""),
            remedy="give another key= or checkpoint_dir=, put the folder of that run back into the home, or "
            "move its checkpoints away",
        )


def _existing(folder: RunFolder, settings: Settings) -> Found:
    info = folder.info
    setup = info.setup
    state = run_state(folder)
    if state.attempt is not None and state.status == "RUNNING" and is_live(state.attempt):
        # The lock decides; this only gives the answer before anything of the run is touched.
        lock = RunLock(Path(info.checkpoint_dir)).peek(ask=True)
        if lock is None or lock.live:
            raise RunLiveError(
                f"run {info.key} is being trained now",
                expected="a run that no process trains",
                found=f"process {state.attempt.pid} on {state.attempt.host}, attempt {state.attempt.attempt}",
                remedy="wait for it, or stop it first",
            )
    if state.attempt is not None:
        check_checkpoint_folder(info)
    recorded = dict(setup.get("config") or {})
    config, fork, offered = recorded, Fork.of(info), settings.config
    if offered is not None:
        offered = offered if fork is None else fork.change(offered)
        # Secrets are not recorded: they come from the script each time. With `allow` its values hold.
        shown = redact_mapping(offered)[0]
        if shown == recorded or "config" in settings.allow:
            config = offered
    seed = int(setup.get("seed", settings.seed or 0))
    attempts = state.attempt.attempt if state.attempt else 0
    if (rehearsal := replay.ordered()) is not None:
        attempts = max(attempts, rehearsal.orders.attempts)
    # Of a replay nothing is tracked.
    uri = info.tracking_uri if rehearsal is not None else unmask(info.tracking_uri, settings.tracking_uri)
    return Found(folder, config, seed, True, attempts, uri, offered, fork)


def check_checkpoint_folder(info: RunInfo) -> None:
    """Make sure that the checkpoint folder of a run that was opened before is there and can be used.

    Raises:
        CheckpointNotFoundError: It is gone; the run would begin again at step 0 without a word.
        CheckpointWriteError: It cannot be read or written.
    """
    folder = Path(info.checkpoint_dir)
    if not folder.is_dir():
        raise CheckpointNotFoundError(
            f"the checkpoint folder of run {info.key} is gone",
            expected=f"a folder {folder}",
            found="no such folder",
            remedy="put it back or mount it, or start a new run",
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise CheckpointWriteError(
            f"the checkpoint folder of run {info.key} cannot be used",
            expected=f"a folder that can be read and written: {folder}",
            found="Permission denied",
            remedy="make it readable and writable for this user",
        )


def capture(found: Found, settings: Settings, attempt: int, manifests: Manifests) -> tuple[Capture, str]:
    """Capture the static manifest; on a resume, compare it with the last one before anything is trained.

    Returns:
        The capture, and a table of what is told about differences (empty without any).

    Raises:
        ChangedError: If something that moves bits changed and is not allowed.
    """
    offered = found.offered if found.offered is not None else found.config
    seed = settings.seed if settings.seed is not None else found.seed
    static = capture_static(config=offered, seed=seed, attempt=attempt)
    before = manifests.last(attempt)
    differences = known_now(diff.compare(before, static.record)) if before is not None else []
    diff.refuse(differences, settings.allow)
    return static, summary.difference_table(differences, settings.allow) if differences else ""


def known_now(differences: list[Difference]) -> list[Difference]:
    """Return the differences without those of the code: what an edit means shows in the compiled step."""
    return [difference for difference in differences if difference.category != "code"]


def first_params(config: dict[str, Any], seed: int) -> dict[str, str]:
    """Return the params that are known at `run()`: the flattened config, without secrets, and the seed."""
    shown = redact_mapping(config)[0]
    params = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in flatten(shown).items()
    }
    return {**params, "seed": str(seed)}


def _shown_arguments() -> list[str]:
    from xptrain.secrets.redact import redact_argv

    return redact_argv(sys.argv[1:])[0]


def user_name() -> str:
    """Return the name of whoever runs this process, or the number of one without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number that has no name.
        return str(os.getuid())


def config_text(config: dict[str, Any]) -> str:
    """Return the config as it is kept in config.json: readable, without secrets."""
    return json.dumps(redact_mapping(config)[0], indent=2, sort_keys=True) + "\n"
