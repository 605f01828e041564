"""What went wrong at the tracking store, in words a user can act on."""

from __future__ import annotations

from xptrain.errors import TrackerError
from xptrain.secrets.redact import redact_text


class Refused(TrackerError):
    """The store works and will never take this record."""


class FilesFailed(TrackerError):
    """The place where the store keeps files cannot be used; the store itself may well work."""


class Failed(TrackerError):
    """The store failed, and not as one does that is down: what was sent may be at fault."""


# What databases, encoders and MLflow's client say about a value that they will never take.
_DATA = (
    "too large to convert",
    "can't encode character",
    "surrogates not allowed",
    "value out of range",
    "Value out of range",
    "integer out of range",
    "Out of range value",
    "Data too long",
    "value too long",
    "NUL (0x00)",
    "invalid byte sequence",
    "Incorrect string value",
    "Invalid artifact path",
)
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
            "error code 429",
            "error code 502",
            "error code 503",
            "error code 504",
            "error responses",
            "RESOURCE_EXHAUSTED",
            "REQUEST_LIMIT_EXCEEDED",
            "TEMPORARILY_UNAVAILABLE",
            "OperationalError)",
            "InterfaceError)",
        ),
        "does not answer",
        "start the server or check the address; delivery is tried again",
    ),
    (
        (
            "error code 401",
            "error code 403",
            "401 Client Error",
            "403 Client Error",
            "UNAUTHENTICATED",
            "PERMISSION_DENIED",
        ),
        "refuses access",
        "check MLFLOW_TRACKING_USERNAME and _PASSWORD or _TOKEN",
    ),
)


def files_failed(location: str, message: str) -> FilesFailed:
    """Return the error to raise when a file cannot be brought to the artifact store.

    Args:
        location: Where the run's files are to be, without password.
        message: What its library said.
    """
    return FilesFailed(
        f"the artifact store {location} cannot be used",
        found=redact_text(" ".join(message.split()))[0][:500],
        remedy="make it reachable and writable; metrics do not wait for it, and the files are sent again",
    )


def explained(uri: str, message: str, code: str = "") -> TrackerError:
    """Return the error to raise for a failure of the store.

    Args:
        uri: The store, without password.
        message: What its library said.
        code: MLflow's error code, if it gave one.

    Returns:
        A TrackerError: Refused when sending the same again is pointless, Failed when that cannot be said, and
        neither when the store is at fault.
    """
    # The address in it may have a password.
    short = redact_text(" ".join(message.split()))[0][:500]
    # What follows is the statement with the user's values, which may hold any of these words.
    said = f"{code} {message}".partition("[SQL:")[0]
    refused = code == "INVALID_PARAMETER_VALUE" or any(part in said for part in _DATA)
    for parts, what, remedy in _KNOWN[:1] if refused else _KNOWN:
        if any(part in said for part in parts):
            return TrackerError(f"the tracking store {uri} {what}", found=short, remedy=remedy)
    if refused:
        return Refused(f"the tracking store {uri} refuses a record", found=short)
    return Failed(
        f"the tracking store {uri} failed", found=f"{code} {short}".strip(), remedy="see recorder.log"
    )
