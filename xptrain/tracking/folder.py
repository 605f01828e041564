"""The run folder: who a run is, and where its files lie."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from xptrain.errors import TrackerError, UsageError
from xptrain.tracking.durable import fsync_folder, write_json


def new_key() -> str:
    """Return a fresh run key: 8 lower-case hexadecimal digits (no global RNG is touched)."""
    return secrets.token_hex(4)


@dataclass(frozen=True)
class RunInfo:
    """The identity of a run, written once.

    Args:
        key: 8 lower-case hexadecimal digits; names the folder and the tag `xptrain.key`.
        experiment: Name of the MLflow experiment.
        name: Name shown for the run, or None to let MLflow draw one.
        created_ms: Milliseconds since the epoch; the run's start time.
        tracking_uri: Where MLflow is (see `stores.resolve_store`); a password in it is masked.
        artifact_location: URI that a new experiment stores its artifacts under; None: the server's default.
        checkpoint_dir: Absolute folder of the checkpoints.
        description: Text shown on the run's page, or None.
        script: The program that started the run, or None in a notebook.
        argv: Its arguments, without the program.
        cwd: The working directory it started in.
        user: Who started it.
        host: Where it started.
        setup: What else the session must know of the start, as JSON data (seed, config, place in process).
    """

    key: str
    experiment: str
    name: str | None
    created_ms: int
    tracking_uri: str
    artifact_location: str | None
    checkpoint_dir: str
    description: str | None
    script: str | None
    argv: tuple[str, ...]
    cwd: str
    user: str
    host: str
    setup: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write this as JSON, atomically."""
        write_json(path, asdict(self))

    @staticmethod
    def read(path: Path) -> RunInfo:
        """Read a run.json.

        Raises:
            TrackerError: The file is missing, unreadable or not a run.json.
        """
        try:
            found = json.loads(path.read_bytes())
            known = {f.name: found[f.name] for f in fields(RunInfo)}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrackerError(
                f"{path} cannot be read as the identity of a run",
                found=f"{type(error).__name__}: {error}",
                remedy="restore the file from a backup, or delete the run's folder",
            ) from error
        return RunInfo(**{**known, "argv": tuple(known["argv"])})


@dataclass(frozen=True)
class Delivered:
    """How far the tracking store has a run's journal.

    Args:
        offset: Position in the journal up to which everything was taken.
        run_id: MLflow run id, None before the first contact.
        status: Last status told to the store.
        diverged: True when a divergence was told (only the first one becomes a tag).
        attempt: The newest attempt that stands in the journal before `offset`.
        tries: How often the record at `offset` failed although the store answered.
        postponed: Positions of earlier records whose files the store would not take yet.
    """

    offset: int = 0
    run_id: str | None = None
    status: str | None = None
    diverged: bool = False
    attempt: int = 0
    tries: int = 0
    postponed: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run and the files in it.

    Args:
        path: `<home>/runs/<key>`.

    Example:
        >>> RunFolder(Path("/data/.xptrain/runs/3f2a9c01")).journal.name
        'journal.jsonl'
    """

    path: Path

    @property
    def key(self) -> str:
        """The run's key."""
        return self.path.name

    @property
    def home(self) -> Path:
        """The home that holds this run."""
        return self.path.parent.parent

    @property
    def run_json(self) -> Path:
        """Identity (RunInfo)."""
        return self.path / "run.json"

    @property
    def journal(self) -> Path:
        """Everything the run has to tell, in order."""
        return self.path / "journal.jsonl"

    @property
    def delivered_json(self) -> Path:
        """How far the tracker has it."""
        return self.path / "delivered.json"

    @property
    def deliver_lock(self) -> Path:
        """Held by the one process that delivers."""
        return self.path / "deliver.lock"

    @property
    def recorder_json(self) -> Path:
        """Which recorder process serves which attempt."""
        return self.path / "recorder.json"

    @property
    def recorder_log(self) -> Path:
        """The recorder's own log."""
        return self.path / "recorder.log"

    @property
    def artifacts(self) -> Path:
        """Copies of what is to be uploaded."""
        return self.path / "artifacts"

    @property
    def checkpoints(self) -> Path:
        """The run's checkpoint folder: the one in run.json, else the default one."""
        return Path(self.info.checkpoint_dir) if self.run_json.exists() else self.path / "checkpoints"

    @property
    def info(self) -> RunInfo:
        """The run's identity, read from disk."""
        return RunInfo.read(self.run_json)

    @property
    def delivered(self) -> Delivered:
        """How far the tracker has the journal; nothing when that is unknown (sending again is harmless)."""
        try:
            found = json.loads(self.delivered_json.read_bytes())
            found = {"attempt": 0, "tries": 0, "postponed": (), **found}  # not in the first versions' files
            found["postponed"] = tuple(map(int, found["postponed"]))
            return Delivered(**{f.name: found[f.name] for f in fields(Delivered)})
        except FileNotFoundError:
            return Delivered()
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"{self.delivered_json} is damaged ({error}): all is sent again", stacklevel=2)
            return Delivered()

    def acknowledge(self, delivered: Delivered) -> None:
        """Record durably how far the tracker has the journal."""
        write_json(self.delivered_json, asdict(delivered))

    def wait_run_id(self, timeout_s: float) -> str | None:
        """Wait until the tracker gave this run an id; None after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while (run_id := self.delivered.run_id) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return run_id

    def wait_delivered(self, offset: int, timeout_s: float) -> bool:
        """Wait until the tracker has the journal up to `offset`; False after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        pause = 0.02
        while self.delivered.offset < offset:
            if (left := deadline - time.monotonic()) <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(0.5, pause * 1.3)
        return True


def create(info: RunInfo, home: Path) -> RunFolder:
    """Make the folder of a new run; it appears complete or not at all.

    Args:
        info: The run's identity.
        home: The home of all runs; made when missing.

    Returns:
        The new folder, with run.json and an empty artifacts folder.

    Raises:
        UsageError: A run with this key exists.
        TrackerError: The folder cannot be made.
    """
    target = home / "runs" / info.key
    try:
        is_new = not home.exists()
        target.parent.mkdir(parents=True, exist_ok=True)
        if is_new:
            # Databases and checkpoints are nobody's commit.
            (home / ".gitignore").write_text("*\n")
        hidden = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
        try:
            hidden.chmod(0o755)
            (hidden / "artifacts").mkdir()
            info.write(hidden / "run.json")
            hidden.rename(target)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        fsync_folder(target.parent)
    except OSError as error:
        if target.exists():
            raise UsageError(f"a run with the key {info.key} exists", found=str(target)) from error
        raise TrackerError(
            f"the run folder {target} cannot be made",
            found=error.strerror,
            remedy="make the folder writable, or point XPTRAIN_HOME at one that is",
        ) from error
    return RunFolder(target)
