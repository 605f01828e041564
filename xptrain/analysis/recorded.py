"""The command that a run was started with, and whether it can be started again."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xptrain.analysis.reading import Reading
from xptrain.errors import UsageError
from xptrain.secrets.redact import REDACTED
from xptrain.session.opening import user_name


@dataclass(frozen=True)
class Recorded:
    """How a run was started.

    Args:
        key: The run's key.
        experiment: Its experiment.
        interpreter: Python that ran it.
        script: Its script; None in a notebook or for `python -c`.
        module: Name given to `python -m`, or None.
        arguments: What followed, secrets redacted.
        cwd: The working directory.
        root: Top folder of its repository, or the script's folder.
        environment: Variables that move bits.
    """

    key: str
    experiment: str
    interpreter: str
    script: str | None
    module: str | None
    arguments: tuple[str, ...]
    cwd: str
    root: str
    environment: Mapping[str, str]

    @property
    def can_run(self) -> bool:
        """Whether there is a file or module that can be started."""
        return self.script is not None or self.module is not None

    @property
    def command(self) -> list[str]:
        """The command line as a list."""
        target = ["-m", self.module] if self.module else [self.script or ""]
        return [self.interpreter, *target, *self.arguments]

    @property
    def shown(self) -> str:
        """The command line as it would be typed."""
        return shlex.join(self.command)

    def with_arguments(self, extra: Sequence[str]) -> Recorded:
        """Return it with more arguments; options given again take the place of redacted ones."""
        given = {argument.partition("=")[0] for argument in extra if argument.startswith("-")}
        kept: list[str] = []
        for argument in self.arguments:
            option = argument.partition("=")[0]
            if argument == REDACTED and kept and kept[-1] in given:
                kept.pop()
            elif not (REDACTED in argument and option in given):
                kept.append(argument)
        return replace(self, arguments=(*kept, *extra))

    def check(self) -> None:
        """Make sure that it can be started here.

        Raises:
            UsageError: It was not a script or module, an argument was redacted, or a file is missing.
        """
        if not self.can_run:
            raise UsageError(
                f"run {self.key} was not started from a script, so there is no command to start again",
                expected="a script or a module",
                found="a notebook, an interactive session or python -c",
                remedy="run the same cells again, the run opened with "
                f'run = xptrain.run({self.experiment!r}, resume="{self.key}").start()',
            )
        if hidden := self._redacted():
            again = " ".join(f"{name} …" for name in hidden)
            raise UsageError(
                f"arguments of run {self.key} were not recorded, since they look like secrets",
                expected="a command line without redacted parts",
                found=self.shown,
                remedy=f"give them again: xptrain resume {self.key} -- {again}",
            )
        missing = [
            ("interpreter", self.interpreter, shutil.which(self.interpreter) is not None),
            ("working directory", self.cwd, Path(self.cwd).is_dir()),
            (
                "script",
                self.script or "",
                bool(self.module) or (Path(self.cwd) / (self.script or "")).is_file(),
            ),
        ]
        for what, path, there in missing:
            if not there:
                raise UsageError(
                    f"the {what} of run {self.key} is missing",
                    expected=f"{path}, as recorded",
                    found="no such file or folder",
                    remedy=f"put it back, or start the script yourself with XPTRAIN_RESUME={self.key}",
                )

    def _redacted(self) -> list[str]:
        names = []
        for index, argument in enumerate(self.arguments):
            if REDACTED in argument:
                before = self.arguments[index - 1] if index else ""
                option = argument.partition("=")[0]
                names.append(option if option.startswith("-") else before or f"argument {index + 1}")
        return names


def recorded(reading: Reading) -> Recorded:
    """Return how a run was started, from the manifest of its newest attempt that trained.

    Args:
        reading: The run.

    Returns:
        The command; where a run ended before its manifest was written, what its identity says.
    """
    info, manifest = reading.info, reading.manifest()
    code = manifest.get("code")
    if code is None:
        folder = str(Path(info.script).parent) if info.script else info.cwd
        return Recorded(
            info.key, info.experiment, sys.executable, info.script, None, info.argv, info.cwd, folder, {}
        )
    return Recorded(
        key=info.key,
        experiment=info.experiment,
        interpreter=code["interpreter"],
        script=_as_typed(code),
        module=code["module"],
        arguments=tuple(code["argv"][1:]),
        cwd=code["cwd"],
        root=code["root"],
        environment=manifest["environment"],
    )


def _as_typed(code: Mapping[str, Any]) -> str | None:
    """Return the script as it was named in its folder, if that still means the same file."""
    script, typed = code["script"], code["argv"][0] if code["argv"] else ""
    if script and typed and os.path.realpath(Path(code["cwd"]) / typed) == os.path.realpath(script):
        return str(typed)
    return None if script is None else str(script)


def strangers(reading: Reading, command: Recorded) -> list[str]:
    """Return what of a run's origin is not here and now: another user, host or repository (law L12).

    Args:
        reading: The run.
        command: Its command.
    """
    info = reading.info
    found = [f"user {info.user}"] if info.user != user_name() else []
    found += [f"host {info.host}"] if info.host != socket.gethostname() else []
    return found + ([] if is_here(command.root, command.cwd) else [f"repository {command.root}"])


def refuse_strangers(reading: Reading, command: Recorded, remedy: str) -> None:
    """Refuse to start a command that was recorded elsewhere without being told to.

    Raises:
        UsageError: It was recorded by another user, on another host or in another repository.
    """
    if found := strangers(reading, command):
        raise UsageError(
            f"the command of run {reading.info.key} was recorded elsewhere, and nobody is here to confirm it",
            expected="this user, host and repository",
            found=f"{', '.join(found)}: {command.shown}",
            remedy=remedy,
        )


def is_here(root: str, cwd: str) -> bool:
    """Tell whether the working directory belongs to where a run was recorded."""
    here = Path(os.path.realpath(Path.cwd()))
    return here.is_relative_to(os.path.realpath(root)) or here == Path(os.path.realpath(cwd))
