"""What a user records under a run, beside what the loop records by itself."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from xptrain.errors import UsageError
from xptrain.tracking import artifacts
from xptrain.tracking.folder import RunFolder
from xptrain.tracking.names import user_tags
from xptrain.tracking.recording import PointWriter


class RunState(Enum):
    """Where a run object is in its life; the value says what that means."""

    NEW = "it has not been started: use `with run:` or `run.start()`"
    OPEN = "it is open"
    CLOSED = "it is finished; open it again with run(resume=…)"


class Recorded:
    """The recording half of a run: metrics, texts, tables, figures, files and tags."""

    step: int
    writer: PointWriter
    folder: RunFolder

    def __init__(self) -> None:
        self._state = RunState.NEW
        self.is_repeating = False
        self.has_metrics = False

    def log_metrics(self, values: Mapping[str, Any], *, step: int | None = None) -> None:
        """Record values of your own.

        Args:
            values: Numbers by name.
            step: Their step; the number of train steps done when None.

        Raises:
            UsageError: If a value is not a number.

        Example:
            >>> run.log_metrics({"bleu": 0.31}, step=3)  # doctest: +SKIP
        """
        self.check_open()
        self.has_metrics = True
        if self.is_repeating:
            return
        self.writer.log(self.step if step is None else step, values)

    def log_text(self, text: str, path: str) -> None:
        """Record a text file.

        Args:
            text: Its content.
            path: Its path in the run's artifacts.

        Example:
            >>> run.log_text("all good", "notes/today.txt")  # doctest: +SKIP
        """
        self.check_open()
        folder, _, name = path.rpartition("/")
        self.keep_text(text, name, folder)

    def log_table(self, table: Any, path: str) -> None:
        """Record a table as CSV.

        Args:
            table: A pandas DataFrame, or anything `pandas.DataFrame` accepts.
            path: Its path in the run's artifacts, ending in .csv.

        Example:
            >>> run.log_table({"class": [0, 1], "recall": [0.9, 0.8]}, "recall.csv")  # doctest: +SKIP
        """
        import pandas as pd

        self.log_text(pd.DataFrame(table).to_csv(index=False), path)

    def log_figure(self, figure: Any, path: str) -> None:
        """Record a Matplotlib figure (or anything with `savefig`).

        Args:
            figure: The figure.
            path: Its path in the run's artifacts; the ending decides the format.

        Example:
            >>> run.log_figure(figure, "confusion.png")  # doctest: +SKIP
        """
        self.check_open()
        buffer = io.BytesIO()
        folder, _, name = path.rpartition("/")
        figure.savefig(buffer, format=name.rpartition(".")[2] or "png")
        self.writer.append("artifact", **artifacts.keep_bytes(self.folder, buffer.getvalue(), name, folder))

    def log_artifact(self, file: str | os.PathLike[str], path: str = "") -> None:
        """Record a file or folder; it is copied before this returns.

        Args:
            file: What to record.
            path: Folder in the run's artifacts.

        Raises:
            UsageError: If there is no such file.

        Example:
            >>> run.log_artifact("labels.txt")  # doctest: +SKIP
        """
        self.check_open()
        self.writer.append("artifact", **artifacts.keep_file(self.folder, Path(file), path))

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set MLflow tags.

        Args:
            tags: Values by name.

        Example:
            >>> run.set_tags({"stage": "baseline"})  # doctest: +SKIP
        """
        self.check_open()
        self.writer.append("tags", values=user_tags({str(name): str(value) for name, value in tags.items()}))

    def keep_text(self, text: str, name: str, path: str) -> None:
        """Keep a text in the run's folder and queue it for the artifact store.

        Args:
            text: Its content.
            name: Its file name.
            path: Its folder in the run's artifacts, "" for the top.
        """
        self.writer.append(
            "artifact",
            **artifacts.keep_bytes(self.folder, text.encode("utf-8", "backslashreplace"), name, path),
        )

    def check_open(self) -> None:
        """Raise UsageError unless the run is open."""
        if self._state is not RunState.OPEN:
            raise UsageError("this run cannot be used now", expected="an open run", found=self._state.value)
