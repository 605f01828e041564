"""The manifest at its two moments, in real processes; nothing starts JAX before the first fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from xptrain.provenance.diff.compare import compare, refuse

Python = Callable[..., str]

RUN = """
import json, sys
from xptrain.provenance.manifest import capture_dynamic, capture_static
static = capture_static(config={"lr": 0.1, "hub": {"token": "conf0secret"}}, seed=7, attempt=1)
assert not {"jax", "keras", "mlflow", "orbax", "rich", "pandas"} & set(sys.modules)
import numpy as np, keras, late
from xptrain.provenance.data import fingerprint
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
whole = capture_dynamic(
    static.record,
    data=fingerprint({"x": np.ones((8, 4)), "y": np.ones(8)}).as_json(),
    order={"seed": 7}, fit={"epochs": 3, "batch_size": 4},
    callbacks=[{"name": "RemoteMonitor", "settings": {"headers": {"authorization": "head0secret"}}}],
    program={"train": "p" * 64},
    variables=[(f"model/{i}", "trainable", v.path, v.value) for i, v in enumerate(model.trainable_variables)],
)
print(json.dumps([whole, static.artifacts]))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(RUN)
    (folder / "late.py").write_text("A = 1\n")
    return folder


@pytest.fixture(scope="module")
def first(python: Python, project: Path) -> tuple[dict, dict]:
    return attempt(python, project)


def attempt(python: Python, project: Path, **env: str) -> tuple[dict, dict]:
    text = python("", str(project / "train.py"), cwd=project, XLA_FLAGS="", **env)
    assert "0secret" not in text
    return json.loads(text)


def test_every_section_is_there_and_no_secret(first: tuple[dict, dict]) -> None:
    manifest, texts = first
    sections = (
        "code config seed packages machine environment flags keras_file devices jax_config keras_config"
    )
    for name in f"{sections} hazards variables topology data order fit callbacks program".split():
        assert manifest[name] is not None, name
    assert manifest["schema"] == 1 and manifest["attempt"] == 1 and manifest["seed"] == 7
    assert set(manifest["code"]["files"]) == {"train.py", "late.py"}
    assert manifest["config_redacted"] == ["hub.token"]
    assert "jaxlib==" in texts["requirements.txt"]
    shown = RUN.replace("conf0secret", "<redacted>").replace("head0secret", "<redacted>")
    assert texts["source/files/train.py"] == shown


def test_two_attempts_of_one_run_do_not_differ(
    first: tuple[dict, dict], python: Python, project: Path
) -> None:
    assert compare(first[0], attempt(python, project)[0]) == []


def test_case_32_another_core_count_and_setting_show(
    first: tuple[dict, dict], python: Python, project: Path
) -> None:
    before = first[0]
    (project / "late.py").write_text("A = 1  # said\n")
    threads = before["machine"]["cores"]["threads"]
    after, _ = attempt(python, project, NPROC=str(threads + 1), JAX_ENABLE_X64="1")
    found = {d.name: (d.category, d.severity) for d in compare(before, after)}
    assert found.pop("cores") == ("devices", "refuse")
    assert found.pop("jax jax_enable_x64") == ("config", "refuse")
    assert found.pop("late.py") == ("code", "tell")
    assert {severity for _, severity in found.values()} == {"tell"}
    refuse(compare(before, after), ["devices", "config"])


ROOM = Path(__file__).parents[2] / "xptrain" / "provenance"
MODULES = [".".join(path.relative_to(ROOM).with_suffix("").parts) for path in ROOM.rglob("*.py")]
PURE = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"xptrain.provenance.{name}")
heavy = {"jax", "jaxlib", "keras", "mlflow", "orbax", "rich", "typer", "pandas"} & set(sys.modules)
print(sorted(heavy))
"""


def test_importing_the_room_loads_no_heavy_library(python: Python, tmp_path: Path) -> None:
    (tmp_path / "pure.py").write_text(PURE)
    names = [name for name in MODULES if "__init__" not in name]
    assert len(names) > 15
    assert python("", str(tmp_path / "pure.py"), *names).strip() == "[]"


def test_the_check_of_imports_can_fail(python: Python, tmp_path: Path) -> None:
    (tmp_path / "pure.py").write_text(PURE.replace("heavy =", "import rich\nheavy ="))
    assert python("", str(tmp_path / "pure.py")).strip() == "['rich']"
