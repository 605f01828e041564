"""What went wrong at the tracking store, in words a user can act on."""

from __future__ import annotations

from xptrain.errors import TrackerError


class Refused(TrackerError):
    """The store works and will never take this record."""


# (parts of the store's message, what to say, what to do); the first that fits counts.
_KNOWN = (
    (
        ("must be in the 'active'",),
        "has this run deleted",
        "restore it: mlflow runs restore --run-id <id>; then xptrain sync",
    ),
    (
        ("database is locked",),
        "is locked by another process",
        "close whatever holds the database (another UI, a backup, a shell); delivery is tried again",
    ),
    (
        ("unable to open database file", "readonly database", "Permission denied"),
        "cannot be opened or written",
        "make the file and its folder exist, readable and writable",
    ),
    (
        ("file is not a database", "disk image is malformed"),
        "is not a sound SQLite database",
        "move it away (the runs' journals fill a new one: xptrain sync) or restore it",
    ),
    (("no such table",), "lost its tables", "move the file away; xptrain sync fills a new one"),
    (
        ("out-of-date database schema",),
        "has an older schema",
        "back it up, then run: mlflow db upgrade <uri>",
    ),
    (("No space left", "disk is full"), "has no disk space left", "free some; delivery is tried again"),
    (("No module named",), "needs a database driver that is not installed", "install it with pip"),
    (
        (
            "timed out",
            "Connection refused",
            "Max retries",
            "Connection aborted",
            "Connection reset",
            "NameResolution",
        ),
        "does not answer",
        "start the server or check the address; delivery is tried again",
    ),
    (
        ("401", "403", "PERMISSION_DENIED"),
        "refuses access",
        "check MLFLOW_TRACKING_USERNAME and _PASSWORD or _TOKEN",
    ),
)


def explained(uri: str, message: str, code: str = "") -> TrackerError:
    """Return the error to raise for a failure of the store.

    Args:
        uri: The store, without password.
        message: What its library said.
        code: MLflow's error code, if it gave one.

    Returns:
        A TrackerError, of the class Refused when sending the same again is pointless.
    """
    short = " ".join(message.split())[:500]
    refused = code == "INVALID_PARAMETER_VALUE"
    for parts, what, remedy in _KNOWN[:1] if refused else _KNOWN:
        if any(part in message for part in parts):
            return TrackerError(f"the tracking store {uri} {what}", found=short, remedy=remedy)
    if refused:
        return Refused(f"the tracking store {uri} refuses a record", found=short)
    return TrackerError(
        f"the tracking store {uri} failed", found=f"{code} {short}".strip(), remedy="see recorder.log"
    )
