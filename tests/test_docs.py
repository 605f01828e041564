"""The documentation covers every public name, and what it repeats from the code is what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from mkdocs.exceptions import PluginError

from xptrain import errors

ROOT = Path(__file__).resolve().parents[1]
API = ROOT / "docs" / "api"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_an_api_page(hooks: ModuleType) -> None:
    assert hooks.undocumented(ROOT / "xptrain", API) == []


def test_every_documented_name_is_public(hooks: ModuleType) -> None:
    assert hooks.documented_names(API) - hooks.public_names(ROOT / "xptrain") == set()


def test_a_name_without_a_page_stops_the_build(hooks: ModuleType, tmp_path: Path) -> None:
    package, pages = tmp_path / "xptrain", tmp_path / "docs" / "api"
    package.mkdir()
    pages.mkdir(parents=True)
    (package / "__init__.py").write_text("__all__ = ['run', 'Run']")
    (package / "errors.py").write_text("class TrackerError(Exception): ...")
    (package / "testing.py").write_text("__all__ = ['assert_resume_exact']")
    (pages / "run.md").write_text("# Runs\n\n::: xptrain.run\n\n::: xptrain.TrackerError\n")
    with pytest.raises(PluginError, match=r"docs/api: xptrain\.Run, xptrain\.testing\.assert_resume_exact$"):
        hooks.on_pre_build({"docs_dir": str(tmp_path / "docs")})


def test_the_errors_page_draws_the_tree_of_the_code() -> None:
    tree = (errors.__doc__ or "").split("\n\n")[1]
    assert f"```text\n{tree}\n```" in (API / "errors.md").read_text()


def test_the_table_of_exit_codes_is_the_one_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| (?:`(\w+)`)? ?\|$", (API / "cli.md").read_text(), re.MULTILINE)
    first_with_code: dict[int, str] = {}
    for name, value in vars(errors).items():
        if isinstance(value, type):
            first_with_code.setdefault(value.exit_code, name)
    others = dict.fromkeys([0, errors.EXIT_DIFFERS, errors.EXIT_INTERRUPTED, errors.EXIT_PREEMPTED], "")
    assert {int(code): name for code, name in rows} == {**first_with_code, **others}


def test_the_example_of_the_readme_is_python_and_short(hooks: ModuleType) -> None:
    example = hooks.EXAMPLE.search((ROOT / "README.md").read_text())[0].splitlines()[1:-1]
    compile("\n".join(example), "README.md", "exec")
    assert len([line for line in example if line]) <= 12


def test_the_site_loads_nothing_from_elsewhere() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in config
    assert "http" not in config


def test_the_fork_of_the_quickstart_begins_at_a_checkpoint_that_is_kept(hooks: ModuleType) -> None:
    example = hooks.EXAMPLE.search((ROOT / "README.md").read_text())[0]
    epochs, batch = (int(re.search(rf"{name}=(\d+)", example)[1]) for name in ("epochs", "batch_size"))
    # load_digits has 1797 images, of which a fifth validates.
    assert ("load_digits" in example, "validation_split=0.2" in example) == (True, True)
    steps = -(-int(1797 * 0.8) // batch)
    command = re.search(r"xptrain fork @last --step (\d+)", (ROOT / "docs" / "quickstart.md").read_text())
    assert command
    assert int(command[1]) in [steps * (epochs - back) for back in (2, 1)]
