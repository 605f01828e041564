"""How a run ends, and how device scalars come to the host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from xptrain.errors import TrackerError, XptrainError
from xptrain.secrets.redact import redact_text
from xptrain.session.preemption import Preempted
from xptrain.tracking import artifacts, journal

if TYPE_CHECKING:
    from xptrain.session.life import Life

_SAVED = ", saved"


def outcome(error: BaseException | None) -> tuple[str, str | None]:
    """Return the status and reason that an exception (or none) at the end of a run means."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "FINISHED", None
    if isinstance(error, KeyboardInterrupt):
        return "KILLED", "interrupted (Ctrl-C)"
    if isinstance(error, Preempted):
        return "KILLED", error.reason
    if isinstance(error, SystemExit):
        return "FAILED", f"exit code {error.code}"
    text = str(error).splitlines()[0] if str(error) else ""
    return "FAILED", f"{type(error).__name__}: {redact_text(text)[0]}"[:500]


def refusal(run: Life, error: BaseException | None) -> str | None:
    """Return why a resumed attempt was refused before it trained anything, or None."""
    trained = run.step > (run.resumed_from or 0)
    status, reason = outcome(error)
    if run.attempt == 1 or trained or status == "FINISHED":
        return None
    # What its user did wrong ends nothing; and a finished run stays finished, whatever befalls afterwards.
    is_refused = isinstance(error, XptrainError) or as_before(run)[0] == "FINISHED"
    return reason if is_refused else None


def as_before(run: Life) -> tuple[str, str | None]:
    """Return how the attempt before this one ended; KILLED when it could not say."""
    status, reason = "KILLED", None
    for record in journal.pick(run.folder.journal, ("attempt", "status")):
        if record.kind == "status":
            status, reason = record.fields["status"], record.fields.get("reason")
        elif record.fields["attempt"] == run.attempt:
            break
        else:
            status, reason = "KILLED", None
    return status, reason


def fetch(values: list[Any]) -> Any:
    """Return device arrays as NumPy arrays: all transfers are begun before the first is waited for.

    `jax.device_get` does the same for some 20 us a scalar, which a training loop of 100 us a step would feel.
    """
    import jax
    import numpy as np

    if jax.default_backend() != "cpu":
        for value in values:
            if isinstance(value, jax.Array):
                value.copy_to_host_async()
    return [np.asarray(value) for value in values]


def tell_the_end(
    run: Life, status: str, reason: str | None, failure: XptrainError | None
) -> XptrainError | None:
    """Journal what is left and the status; returns the first failure, which makes the status FAILED.

    A resumed attempt that was refused leaves the run with the status it had.
    """
    try:
        run.writer.append("tags", values={f"xptrain.attempt.{run.attempt}.to_step": str(run.step)})
        ledger = run.checkpoints.folder / "ledger.jsonl"
        if ledger.is_file():
            run.writer.append("artifact", **artifacts.keep_file(run.folder, ledger))
        used = run.compile_cache.used()
        if used is not None:
            told = f"{used['hits']} loaded, {used['misses']} compiled"
            run.writer.append("tags", values={"xptrain.compile_cache": told})
            folder = "" if run.attempt == 1 else f"attempt-{run.attempt}"
            run.keep_text(json.dumps(used, indent=2) + "\n", "compile_cache.json", folder)
        if run.refused is not None:
            run.writer.append("tags", values={f"xptrain.attempt.{run.attempt}.refused": run.refused})
        run.writer.flush()
        if run.writer.divergences and run.grade:
            count = f"{run.writer.divergences} points came out differently"
            run.grade = run.grade.lower("approximate", count)
            run.writer.append("tags", values={"xptrain.grade": str(run.grade)})
    except TrackerError as error:
        failure = failure or error
    if failure is not None and status == "FINISHED":
        status, reason = "FAILED", failure.what
    elif failure is not None and reason and reason.endswith(_SAVED):
        reason = f"{reason.removesuffix(_SAVED)}, not saved: {failure.what}"
    elif failure is None and run.refused is not None:
        status, reason = as_before(run)
    run.status = status
    try:
        run.writer.append("status", status=status, reason=reason)
    except TrackerError as error:
        failure = failure or error
    finally:
        run.writer.close()
    return failure
