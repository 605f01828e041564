"""Every error that xptrain raises on purpose, and the exit code each one gives.

XptrainError                      1  base; also: the user's own exception ended the run
├── UsageError                    2  a wrong argument or setting
│   ├── BackendError              2  Keras does not run on the JAX backend
│   ├── ConfigError               2  the config cannot be recorded
│   └── NotCompiledError          2  the model has no optimizer and loss yet
├── RunNotFoundError              3  no run, or more than one, has that name
├── RunLiveError                  4  another process is training this run
│   └── FencedError               4  another attempt took this run over
├── InexactError                  5  refused: resuming would not give the same bits
│   └── ChangedError              5  code, config, data, packages or devices changed
├── CheckpointError               6  a checkpoint cannot be read or written
│   ├── CheckpointNotFoundError   6  there is no checkpoint to restore
│   ├── CheckpointDamagedError    6  bytes on disk do not match their receipt
│   ├── CheckpointWriteError      6  a save failed (disk full, read-only, folder gone)
│   └── RestoreMismatchError      6  the checkpoint does not fit this model
└── TrackerError                  7  the tracking store cannot be opened or used

Other exit codes: 0 success, 8 two things compared differ, 143 preempted (SIGTERM), 130 interrupted.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_DIFFERS = 8
EXIT_INTERRUPTED = 130
EXIT_PREEMPTED = 143


class XptrainError(Exception):
    """An error with a remedy: what happened, what was expected, what was found, what to do.

    Args:
        what: One sentence that says what went wrong.
        expected: What would have been right, if that can be said.
        found: What was there instead.
        remedy: What the user can do about it.

    Example:
        >>> str(UsageError("epochs must be positive", expected="an integer >= 1", found="0"))
        'epochs must be positive\\n  expected: an integer >= 1\\n  found:    0'
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        what: str,
        *,
        expected: str | None = None,
        found: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.what = what
        self.expected = expected
        self.found = found
        self.remedy = remedy
        parts = (("expected: ", expected), ("found:    ", found), ("remedy:   ", remedy))
        super().__init__("\n".join([what, *(f"  {label}{text}" for label, text in parts if text)]))


class UsageError(XptrainError):
    """A wrong argument or setting."""

    exit_code = 2


class BackendError(UsageError):
    """Keras does not run on the JAX backend."""


class ConfigError(UsageError):
    """The config cannot be recorded."""


class NotCompiledError(UsageError):
    """The model has not been compiled."""


class RunNotFoundError(XptrainError):
    """No run, or more than one, matches the given name."""

    exit_code = 3


class RunLiveError(XptrainError):
    """Another process is training this run now."""

    exit_code = 4


class FencedError(RunLiveError):
    """A later attempt took this run over; this process must not write to it any more."""


class InexactError(XptrainError):
    """Refused: going on would not give the bits of the run that was never stopped."""

    exit_code = 5


class ChangedError(InexactError):
    """Something that moves bits changed since the run was started."""


class CheckpointError(XptrainError):
    """A checkpoint cannot be read or written."""

    exit_code = 6


class CheckpointNotFoundError(CheckpointError):
    """There is no checkpoint to restore."""


class CheckpointDamagedError(CheckpointError):
    """The bytes on disk do not match the checkpoint's receipt."""


class CheckpointWriteError(CheckpointError):
    """A checkpoint could not be written."""


class RestoreMismatchError(CheckpointError):
    """The checkpoint's variables are not this model's variables."""


class TrackerError(XptrainError):
    """The tracking store cannot be opened or used."""

    exit_code = 7
