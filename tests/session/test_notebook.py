"""A run cell by cell: interrupted, gone on with, looked at, and resumed from another notebook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.session.conftest import Runs
from xptrain.analysis.reading import read
from xptrain.analysis.recorded import recorded
from xptrain.errors import UsageError
from xptrain.tracking.folder import RunFolder

# Feeds cells to an interpreter as a notebook's kernel does: an error ends the cell, and nothing else.
KERNEL = """
import code, json, sys
kernel = code.InteractiveInterpreter({"__name__": "__main__"})
for cell in json.load(sys.stdin):
    kernel.runcode(compile(cell, "<cell>", "exec"))
"""
FIRST = """
import os, signal, keras, xptrain
from tests.examples import X, Y, dropout_model, variable_digests
class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if INTERRUPT and run.step == 7:
            os.kill(os.getpid(), signal.SIGINT)
def fit():
    run.fit(model, X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[Interrupt()])
"""
OPEN = "run = xptrain.run('notebook', key={key!r}, seed=0).start(); model = dropout_model()"
AGAIN = "run = xptrain.run('notebook', resume={key!r}).start(); model = dropout_model()"
TELL = "print(run.key, run.step, run.status, sorted(variable_digests(model).items()))"


def cells(home: Path, *given: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", KERNEL],
        input=json.dumps([FIRST, *given]),
        env={**os.environ, "XPTRAIN_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=home.parent,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.timeout(600)
def test_an_interrupted_cell_can_be_run_again_here_or_in_another_notebook(isolated_home: Path) -> None:
    isolated_home.mkdir(exist_ok=True)
    interrupted = ("INTERRUPT = True", "fit()", "INTERRUPT = False", "model.predict(X, verbose=0)")
    done = cells(
        isolated_home,
        *("INTERRUPT = False", OPEN.format(key="straight"), "fit()", "run.finish()", TELL),
        *(OPEN.format(key="cut"), *interrupted, TELL, "fit()", TELL, "run.finish()", TELL),
        *(OPEN.format(key="left"), *interrupted, TELL, "run.finish('KILLED')"),
    )
    assert done.stderr.count("KeyboardInterrupt") == 2, done.stderr
    straight, stopped, went_on, finished, left = done.stdout.splitlines()
    assert stopped.startswith("cut 7 RUNNING")
    # The next cell's fit is a second fit of the same run: it begins where the weights are.
    assert went_on.startswith("cut 22 RUNNING")
    assert finished.startswith("cut 22 FINISHED")
    assert left.startswith("left 7 RUNNING")
    again = cells(isolated_home, "INTERRUPT = False", AGAIN.format(key="left"), "fit()", "run.finish()", TELL)
    assert again.stdout.split()[:3] == ["left", "15", "FINISHED"], again.stderr
    # The notebook that was interrupted and the one that was not end with the same bits.
    assert again.stdout.split(maxsplit=3)[3] == straight.split(maxsplit=3)[3] + "\n"
    with pytest.raises(UsageError) as caught:
        recorded(read(RunFolder(isolated_home / "runs" / "left"))).check()
    assert "run = xptrain.run('notebook', resume=\"left\").start()" in str(caught.value)


class Tags(HTMLParser):
    """The tags of a page, its attributes and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def test_a_run_is_shown_as_a_table_with_everything_escaped(isolated_home: Path) -> None:
    import xptrain
    from tests.examples import X, Y, small

    bad = '<script>alert("x")</script><img src=x onerror=y>'
    run = xptrain.run(bad, key="shown", seed=3, config={"a": {bad: bad}, "token": "a0secret", "lr": 0.1})
    assert "not started" in Tags(run._repr_html_()).text
    with run:
        run.fit(small(), X, Y, verbose=0)
        shown = Tags(run._repr_html_())
    assert shown.tags == {"table", "tr", "th", "td", "br"}
    assert shown.attributes == {"style", "colspan"}
    for text in (bad, "shown", "attempt 1, 2 steps", "exact", "lr = 0.1", str(run.folder.path), "xptrain"):
        assert text in shown.text, text
    assert "RUNNING (open)" in shown.text
    assert "FINISHED (closed)" in Tags(run._repr_html_()).text
    assert "a0secret" not in shown.text


def test_a_long_config_is_cut(runs: Runs) -> None:
    with runs.open("long", config={f"name{i}": "v" * 500 for i in range(40)}) as run:
        page = run._repr_html_()
    assert "and 28 more" in page
    assert len(page) < 8_000
