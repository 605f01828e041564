"""`xptrain sync`, and what every command that looks at runs does for those that died unseen."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from xptrain.analysis.reading import Reading, read
from xptrain.analysis.status import RUNNING, is_running
from xptrain.checkpoint.lock import RunLock
from xptrain.cli import console
from xptrain.errors import TrackerError
from xptrain.tracking import recorder
from xptrain.tracking.attempts import Attempt
from xptrain.tracking.drain import Delivery, reconcile
from xptrain.tracking.finding import all_runs, find, home
from xptrain.tracking.stores import open_tracker, sqlite_path, unmask


def sync_runs(name: str | None, as_json: bool) -> None:
    """Deliver what the tracking store lacks of one run, or of all of them.

    Raises:
        TrackerError: The store of a run could not be used; the other runs were delivered all the same.
    """
    folders = [find(name, home())] if name else all_runs(home())
    readings = [read(folder) for folder in folders]
    done: list[dict[str, object]] = []
    failed: list[tuple[str, TrackerError]] = []
    for reading in readings:
        if name is None and not (reading.undelivered or reading.postponed or reading.unsettled):
            continue
        try:
            delivery = deliver(reading)
        except TrackerError as error:
            failed.append((reading.info.key, error))
            continue
        done.append({"key": reading.info.key, "run_id": delivery.run_id, **_counts(delivery)})
        if not as_json:
            console.out().print(
                f"{reading.info.key}: {delivery.records} records sent, {delivery.status or 'no status yet'}"
            )
        if delivery.postponed:
            failed.append((reading.info.key, _files_wait(reading, delivery)))
    if as_json:
        console.print_json(done)
    elif not done and not failed and not home().is_dir():
        console.out().print(f"no runs in {home()}: there is no such folder", soft_wrap=True)
    elif not done and not failed:
        console.out().print(f"the tracking store has everything of {len(readings)} runs")
    if failed:
        first = failed[0][1]
        names = ", ".join(key for key, _ in failed)
        what = f"{len(failed)} of {len(readings)} runs were not wholly delivered ({names}): "
        raise TrackerError(what + first.what, expected=first.expected, found=first.found, remedy=first.remedy)


def deliver(reading: Reading) -> Delivery:
    """Deliver one run, and mark it KILLED when its process died without a word.

    Raises:
        TrackerError: The store cannot be used now.
    """
    info = reading.info
    uri = unmask(info.tracking_uri)
    if uri.startswith("sqlite:") and reading.run_id and not (database := sqlite_path(uri)).exists():
        raise TrackerError(
            f"the tracking store of run {info.key} is gone",
            expected=f"the database {database}, which has had this run",
            found="no file",
            remedy=f"put it back; or delete {reading.folder.delivered_json} to send the run to a new one",
        )
    lock = RunLock(Path(info.checkpoint_dir))

    def alive(attempt: Attempt) -> bool:
        return is_running(attempt, RUNNING, lock.peek(ask=True))

    return reconcile(reading.folder, open_tracker, alive)


def settle(readings: Iterable[Reading]) -> None:
    """Tell the tracking store of runs that ended while nobody watched; trouble is said, not raised."""
    for reading in readings:
        if not reading.unsettled or recorder.lives(reading.folder):
            continue
        try:
            delivery = deliver(reading)
        except TrackerError as error:
            console.err().print(
                f"xptrain: run {reading.info.key} is not wholly in its tracking store: {error.what} "
                "(`xptrain sync` tries again)",
                style="yellow",
                soft_wrap=True,
            )
            continue
        console.err().print(
            f"xptrain: run {reading.info.key} is now {delivery.status} in MLflow", style="dim"
        )


def _counts(delivery: Delivery) -> dict[str, object]:
    return {
        "records": delivery.records,
        "status": delivery.status,
        "undelivered_files": delivery.postponed,
    }


def _files_wait(reading: Reading, delivery: Delivery) -> TrackerError:
    return TrackerError(
        "the artifact store does not take their files",
        found=f"{delivery.postponed} of run {reading.info.key}; all else is delivered",
        remedy="its tag xptrain.files_waiting says why; xptrain sync tries again",
    )
