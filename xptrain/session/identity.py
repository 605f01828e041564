"""Which run a call of `run()` means: a new one, or which of those that exist."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from pathlib import Path

from xptrain.session import forked
from xptrain.session.settings import Settings
from xptrain.state.digest import canonical_json
from xptrain.tracking.attempts import run_state
from xptrain.tracking.finding import all_runs, find
from xptrain.tracking.folder import RunFolder, new_key

# Job ids that a scheduler keeps when it issues the same command again.
_JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


class Process:
    """The runs of this process in order, so that a resumed process finds each of its runs again."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self.opened = 0
        self._resumed: RunFolder | None = None

    def next_place(self) -> tuple[str, int]:
        """Return the process's name and the number of the next run in it."""
        return self.name, self.opened

    def count(self) -> None:
        """Note that a run was opened."""
        self.opened += 1

    def resumed_here(self, home: Path) -> RunFolder | None:
        """Return the run that `XPTRAIN_RESUME` means for the next `run()` of this process, or None.

        The variable names one run. The runs before and after it, in the process that started it, are
        matched by their place.
        """
        wanted = os.environ.pop("XPTRAIN_RESUME", None)
        if wanted:
            forked.begin(wanted, home)
            self._resumed = find(wanted, home)
            self.name = self._resumed.info.setup.get("process", self.name)
        if self._resumed is None:
            return None
        for folder in all_runs(home):
            if (
                folder.info.setup.get("process") == self.name
                and folder.info.setup.get("place") == self.opened
            ):
                return folder
        return None


PROCESS = Process()


def target(settings: Settings, home: Path) -> tuple[RunFolder | None, str]:
    """Return the run to resume (or None) and the key that a new one would get."""
    resumed = PROCESS.resumed_here(home)
    if resumed is not None:
        return resumed, resumed.key
    if settings.resume == "never":
        return None, settings.key or new_key()
    if settings.resume != "auto":
        return find(settings.resume, home), settings.resume
    if settings.key:
        # Not `find`: a key that begins like another one is a key of its own.
        folder = RunFolder(home / "runs" / settings.key)
        return (folder if folder.run_json.exists() else None), settings.key
    wanted = automatic_id(settings)
    for folder in reversed(all_runs(home)):
        if folder.info.setup.get("auto") == wanted and not is_finished(folder):
            return folder, folder.key
    return None, new_key()


def is_finished(folder: RunFolder) -> bool:
    """Tell whether a run's last attempt ended well."""
    return run_state(folder).status == "FINISHED"


def automatic_id(settings: Settings) -> str | None:
    """Return what `resume="auto"` knows a run by: the job id, else experiment, config and script.

    None unless the run is to be found in this way.
    """
    if settings.resume != "auto" or settings.key:
        return None
    job = next((os.environ[name] for name in _JOB_IDS if os.environ.get(name)), None)
    script = sys.argv[0] if sys.argv else ""
    parts = [settings.experiment, str(Path(script).absolute()), job or settings.config]
    return hashlib.blake2s(canonical_json([*parts, PROCESS.opened]).encode(), digest_size=4).hexdigest()
