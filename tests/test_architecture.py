"""Who may import whom, which module may touch which library, and that each of these rules can fail."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import arrows
import pytest

import xptrain

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "xptrain"
ROOMS = ROOT / "docs" / "design" / "rooms.md"

# docs/design/rooms.md, as data.
BELOW_SESSION = {"training", "data", "state", "checkpoint", "tracking", "provenance"}
ARROWS: dict[str, set[str]] = {
    "cli": {"analysis", "session", "tracking", "checkpoint", "provenance"},
    "analysis": {"session", "tracking", "checkpoint", "provenance", "training", "state"},
    "session": BELOW_SESSION,
    "training": {"data", "state"},
    "data": {"state"},
    "state": set(),
    "checkpoint": {"state"},
    "tracking": set(),
    "provenance": {"state"},
    "testing": {"cli", "analysis", "session", *BELOW_SESSION},
    "errors": set(),
    "faults": set(),
    "secrets": set(),
}
OPEN_TO_ALL = {"errors", "faults", "secrets"}
# What a chain of imports must never lead to, whatever the table allows step by step.
NEVER_REACHED = {
    ("tracking", "checkpoint"),
    ("checkpoint", "tracking"),
    *(("training", room) for room in ("tracking", "checkpoint", "provenance", "session")),
    *(("data", room) for room in ("tracking", "checkpoint", "provenance", "session", "training")),
    *(("state", room) for room in ARROWS if room not in {"state", *OPEN_TO_ALL}),
    *(("errors", room) for room in ARROWS if room != "errors"),
    *((room, outer) for room in ("session", *BELOW_SESSION) for outer in ("analysis", "cli", "testing")),
}
DOORS = {
    "orbax": "xptrain.checkpoint.store",
    "mlflow": "xptrain.tracking.mlflow_tracker",
    "keras.src": "xptrain.training.keras_backend",
    "typer": "xptrain.cli",
    "rich": "xptrain.cli",
}
# The one module for a library may know its inside; a room of several modules may not.
# The last is the only one that knows where Python's own end can be waited for.
LIBRARY_DOORS = {DOORS["orbax"], DOORS["mlflow"], DOORS["keras.src"], "xptrain.session.at_exit"}
# The training process never loads MLflow; the recorder never loads what trains.
NEVER_LOADED = {
    "xptrain": {"mlflow", "orbax", "jax", "keras"},
    "xptrain.session": {"mlflow"},
    "xptrain.training.trainer": {"mlflow"},
    "xptrain.tracking.recorder": {"jax", "keras", "orbax"},
}
LONGEST = 350

Rule = Callable[[arrows.Tree], list[str]]
RULES: dict[str, Rule] = {
    "arrows": lambda tree: arrows.wrong_arrows(tree, ARROWS, OPEN_TO_ALL),
    "reach": lambda tree: arrows.wrong_reach(tree, NEVER_REACHED),
    "doors": lambda tree: arrows.wrong_doors(tree, DOORS),
    "start": lambda tree: arrows.wrong_start(tree, NEVER_LOADED),
    "code": arrows.wrong_code,
    "private": lambda tree: arrows.wrong_private(tree, LIBRARY_DOORS),
    "length": lambda tree: arrows.too_long(tree, LONGEST),
    "shadow": lambda tree: arrows.shadowed(tree, xptrain.__all__),
}


@pytest.fixture(scope="module")
def package() -> arrows.Tree:
    return arrows.read(PACKAGE)


@pytest.mark.parametrize("rule", RULES)
def test_the_package_keeps(rule: str, package: arrows.Tree) -> None:
    assert RULES[rule](package) == []


def test_every_module_is_read(package: arrows.Tree) -> None:
    assert {"xptrain", "xptrain.errors", "xptrain.state.digest"} <= set(package)
    assert len(package) == len(list(PACKAGE.rglob("*.py")))


def test_the_table_is_the_one_in_the_design_page() -> None:
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \|[^|]*\| (.*) \|$", ROOMS.read_text(), re.MULTILINE)
    table: dict[str, set[str]] = {}
    for room, may_import in rows:
        table[room] = (
            set(table) if may_import == "anything above" else set(re.findall(r"`(\w+)`", may_import))
        )
    assert table == {room: rooms for room, rooms in ARROWS.items() if room not in OPEN_TO_ALL}


# --- the rules can fail -------------------------------------------------------------------------------

CLEAN = {
    "__init__.py": """
        from typing import TYPE_CHECKING, Final
        from xptrain.errors import XptrainError
        if TYPE_CHECKING:
            from xptrain.session import run
        _HOMES: Final = {"run": "xptrain.session", "every": "xptrain.checkpoint.policies"}
    """,
    "errors.py": "class XptrainError(Exception): ...",
    "faults.py": "from collections.abc import Callable",
    "session.py": """
        from xptrain.checkpoint import store
        from xptrain.training.trainer import Trainer
        def run(): from xptrain.tracking import drain
    """,
    "analysis/__init__.py": "from xptrain import session",
    "cli/__init__.py": "",
    "cli/main.py": "import rich, typer\nfrom xptrain import __version__\nfrom xptrain import analysis",
    "training/__init__.py": "",
    "training/trainer.py": "from ..state import digest\nfrom .keras_backend import f",
    "training/keras_backend.py": "import keras\nfrom keras.src import tree\ndef f(m): m._symbolic_build()",
    "data/__init__.py": "from xptrain.state.digest import digest_array",
    "state/__init__.py": "",
    "state/digest.py": "from xptrain.errors import XptrainError\nclass D:\n  _a = 1\n  def f(self): self._a",
    "checkpoint/__init__.py": "",
    "checkpoint/store.py": "import orbax.checkpoint as ocp\nfrom xptrain import faults",
    "checkpoint/policies.py": "import os\ndef stop(): os._exit(1)",
    "tracking/__init__.py": "",
    "tracking/mlflow_tracker.py": "import mlflow",
    "tracking/drain.py": "def drain(): from xptrain.tracking import mlflow_tracker",
    "tracking/recorder.py": "from . import drain",
    "provenance/__init__.py": "import re\nP = re.compile('x')",
    "testing.py": "from xptrain import session, tracking",
}

# rule, file, line added to it, part of the complaint
SABOTAGE = [
    ("arrows", "state/digest.py", "from xptrain.tracking import drain", "state imports tracking"),
    ("arrows", "state/digest.py", "def f(): import xptrain.training.trainer", "state imports training"),
    ("arrows", "state/digest.py", "if TYPE_CHECKING: from xptrain import session", "state imports session"),
    ("arrows", "state/digest.py", "from ..data import source", "state imports data"),
    ("arrows", "state/digest.py", "from xptrain import run", "state imports session"),
    ("arrows", "state/digest.py", "import xptrain", "state imports the package itself"),
    ("arrows", "checkpoint/store.py", "from xptrain.tracking import drain", "checkpoint imports tracking"),
    ("arrows", "tracking/drain.py", "from xptrain.checkpoint import store", "tracking imports checkpoint"),
    ("arrows", "training/trainer.py", "from xptrain import every", "training imports checkpoint"),
    (
        "arrows",
        "session.py",
        "import importlib\nimportlib.import_module('xptrain.cli')",
        "session imports cli",
    ),
    ("arrows", "errors.py", "import xptrain.faults", "errors imports faults"),
    ("arrows", "plugins/new.py", "", "'plugins' is not in the arrow table"),
    ("reach", "tracking/drain.py", "from xptrain.checkpoint import store", "tracking reaches checkpoint"),
    ("reach", "data/__init__.py", "from xptrain import analysis", "data reaches tracking: xptrain.data -> "),
    ("doors", "checkpoint/policies.py", "import orbax.checkpoint", "only xptrain.checkpoint.store may"),
    ("doors", "session.py", "def f(): import mlflow", "only xptrain.tracking.mlflow_tracker may"),
    ("doors", "session.py", "__import__('mlflow')", "only xptrain.tracking.mlflow_tracker may"),
    (
        "doors",
        "training/trainer.py",
        "from keras.src.backend import jax",
        "only xptrain.training.keras_backend",
    ),
    ("doors", "training/trainer.py", "from keras import src", "only xptrain.training.keras_backend"),
    (
        "doors",
        "training/trainer.py",
        "import keras as k\nk.src.backend",
        "only xptrain.training.keras_backend",
    ),
    ("doors", "analysis/__init__.py", "from rich.table import Table", "only xptrain.cli may"),
    ("start", "errors.py", "import jax", "importing xptrain loads jax: xptrain -> xptrain.errors"),
    (
        "start",
        "session.py",
        "from xptrain.tracking import mlflow_tracker",
        "importing xptrain.session loads mlflow",
    ),
    ("start", "tracking/__init__.py", "import jax", "importing xptrain.tracking.recorder loads jax"),
    ("code", "state/digest.py", "import pickle", "pickle can run code"),
    ("code", "state/digest.py", "def f(): from cloudpickle import loads", "cloudpickle.loads can run code"),
    ("code", "state/digest.py", "import importlib\nimportlib.import_module('dill')", "dill can run code"),
    ("code", "state/digest.py", "import marshal as m", "marshal can run code"),
    ("code", "state/digest.py", "eval('1')", "eval() runs text"),
    ("code", "state/digest.py", "import builtins\nbuiltins.exec('1')", "exec() runs text"),
    ("code", "state/digest.py", "import numpy as np\nnp.load('x', allow_pickle=True)", "allow_pickle"),
    ("code", "state/digest.py", "keras.models.load_model('x', safe_mode=False)", "safe_mode"),
    ("code", "state/digest.py", "pandas.read_pickle('x')", "read_pickle can run code"),
    (
        "code",
        "state/digest.py",
        "from importlib import import_module\nimport_module(name)",
        "made at run time",
    ),
    ("private", "training/trainer.py", "def f(model): model._symbolic_build()", "_symbolic_build is private"),
    ("private", "training/trainer.py", "getattr(model, '_jit', None)", "_jit is private"),
    (
        "private",
        "session.py",
        "class R(keras.Model):\n  def f(self): return self._layers",
        "_layers is private",
    ),
    ("length", "state/digest.py", "\n" * LONGEST, f"at most {LONGEST}"),
    ("doors", "training/trainer.py", "import mlflow\nmlflow.run", "mlflow.run is touched"),
    ("shadow", "run.py", "", "shadows the public name run"),
]


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    folder = tmp_path / "xptrain"
    for name, text in CLEAN.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        indent = re.match(r"\n( *)", text)
        file.write_text(text.replace(indent[0], "\n").lstrip("\n") if indent else text)
    return folder


@pytest.mark.parametrize("rule", RULES)
def test_a_clean_tree_keeps(rule: str, planted: Path) -> None:
    assert RULES[rule](arrows.read(planted)) == []


@pytest.mark.parametrize(("rule", "name", "line", "complaint"), SABOTAGE)
def test_the_rule_can_fail(rule: str, name: str, line: str, complaint: str, planted: Path) -> None:
    file = planted / name
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as stream:
        stream.write(f"\n{line}\n")
    found = RULES[rule](arrows.read(planted))
    assert any(complaint in text for text in found), found


def test_a_wider_table_does_not_widen_what_may_be_reached(planted: Path) -> None:
    (planted / "state" / "digest.py").write_text("from xptrain.tracking import drain")
    tree = arrows.read(planted)
    assert arrows.wrong_arrows(tree, {**ARROWS, "state": {"tracking"}}, OPEN_TO_ALL) == []
    chain = "xptrain.training.trainer -> xptrain.state.digest -> xptrain.tracking.drain"
    assert f"training reaches tracking: {chain}" in arrows.wrong_reach(tree, NEVER_REACHED)
