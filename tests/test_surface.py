"""The public names are exactly these, cheap to import, documented, and their errors keep one shape."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import xptrain
from xptrain import errors

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "xptrain"

FUNCTIONS = {
    "run",
    "every",
    "keep",
    "best",
    "runs",
    "history",
    "compare",
    "explain",
    "load_weights",
    "verify",
}
CLASSES = {"Run", "Trainer", "Stateful", "Tracker"}
ERRORS = {
    "XptrainError",
    "UsageError",
    "BackendError",
    "ConfigError",
    "NotCompiledError",
    "RunNotFoundError",
    "RunLiveError",
    "FencedError",
    "InexactError",
    "ChangedError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "CheckpointDamagedError",
    "CheckpointWriteError",
    "RestoreMismatchError",
    "TrackerError",
}
HEAVY = {"mlflow", "orbax", "jax", "keras"}

# --- names --------------------------------------------------------------------------------------------


def test_the_public_names_are_exactly_these() -> None:
    assert set(xptrain.__all__) == FUNCTIONS | CLASSES | ERRORS
    assert len(xptrain.__all__) == len(set(xptrain.__all__))


def test_every_error_is_public() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined == ERRORS


def test_dir_lists_names_that_are_not_loaded_yet() -> None:
    assert set(xptrain.__all__) <= set(dir(xptrain))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'xptrain' has no attribute 'runn'"):
        xptrain.runn


@pytest.mark.parametrize("name", sorted(FUNCTIONS | CLASSES))
def test_every_lazy_name_is_defined_where_the_table_says(name: str) -> None:
    value = getattr(xptrain, name)
    assert value.__module__ == xptrain._HOMES[name]
    assert value.__name__ == name


def test_the_table_and_the_type_checkers_view_agree() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == xptrain._HOMES


def test_a_submodule_does_not_take_the_place_of_a_name() -> None:
    import_module("xptrain.session")
    assert callable(xptrain.run)


# --- import -------------------------------------------------------------------------------------------


def loaded_by(statement: str, *, path: Path = ROOT) -> set[str]:
    """Return the top-level modules that a fresh interpreter has after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    environment = {**os.environ, "PYTHONPATH": str(path)}
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=path, env=environment, capture_output=True, text=True, check=True
    ).stdout
    return set(printed.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import xptrain, xptrain.errors") & HEAVY == set()


def test_the_check_of_purity_can_fail(tmp_path: Path) -> None:
    (tmp_path / "xptrain").mkdir()
    (tmp_path / "xptrain" / "__init__.py").write_text("import xptrain.errors")
    (tmp_path / "xptrain" / "errors.py").write_text("import keras")
    (tmp_path / "keras.py").write_text("")
    assert loaded_by("import xptrain", path=tmp_path) & HEAVY == {"keras"}


# --- documentation ------------------------------------------------------------------------------------


def missing_sections(value: Any) -> list[str]:
    """Return what the docstring of a public function or class lacks: a line, Args, Returns, an Example."""
    text = inspect.getdoc(value) or ""
    signature = inspect.signature(value)
    arguments = [p for name, p in signature.parameters.items() if name not in {"self", "cls"}]
    needed = ["Example:"]
    # What `run()` hands out is not made by its user: its attributes are told instead.
    if arguments and not is_protocol(value) and not has_section(text, "Attributes:"):
        needed.append("Args:")
    if not isinstance(value, type) and gives_something(signature):
        needed.append("Returns:")
    return missing_line(text) + [section for section in needed if not has_section(text, section)]


def missing_method_sections(method: Callable[..., Any]) -> list[str]:
    """Return what the docstring of a public method lacks: a line, and Args when it takes any."""
    text = inspect.getdoc(method) or ""
    arguments = [name for name in inspect.signature(method).parameters if name not in {"self", "cls"}]
    lacks_args = bool(arguments) and not has_section(text, "Args:")
    return missing_line(text) + (["Args:"] if lacks_args else [])


def is_protocol(value: Any) -> bool:
    return getattr(value, "_is_protocol", False)


def missing_line(text: str) -> list[str]:
    first = text.partition("\n")[0]
    return [] if len(first) > 10 and first.endswith((".", ":")) else ["a first line that ends in a full stop"]


def has_section(text: str, section: str) -> bool:
    return re.search(rf"^{section}$", text, re.MULTILINE) is not None


def gives_something(signature: inspect.Signature) -> bool:
    return signature.return_annotation not in (None, "None", inspect.Signature.empty)


def public_methods(cls: type) -> list[str]:
    return [
        name
        for name, value in vars(cls).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    ]


@pytest.mark.parametrize("name", sorted(FUNCTIONS | CLASSES))
def test_every_public_name_says_how_it_is_used(name: str) -> None:
    assert missing_sections(getattr(xptrain, name)) == []


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_public_method_says_what_it_does(name: str) -> None:
    cls = getattr(xptrain, name)
    lacking = {}
    for method in public_methods(cls):
        value = vars(cls)[method]
        # A property has no arguments, and a protocol's one line says what an implementation has to do.
        if isinstance(value, property) or is_protocol(cls):
            lacking[method] = missing_line(inspect.getdoc(value) or "")
        else:
            lacking[method] = missing_method_sections(value)
    assert {method: lacks for method, lacks in lacking.items() if lacks} == {}


def test_everything_in_testing_says_how_it_is_used() -> None:
    testing = import_module("xptrain.testing")
    lacking = {name: missing_sections(getattr(testing, name)) for name in testing.__all__}
    assert {name: lacks for name, lacks in lacking.items() if lacks} == {}


def test_the_check_of_docstrings_can_fail() -> None:
    def bare(step: int) -> int:
        return step

    def told(step: int) -> int:
        """Return the step that was given.

        Args:
            step: Any step.

        Returns:
            The same step.

        Example:
            >>> told(3)
            3
        """
        return step

    line = "a first line that ends in a full stop"
    assert missing_sections(bare) == [line, "Example:", "Args:", "Returns:"]
    assert missing_method_sections(bare) == [line, "Args:"]
    assert missing_sections(told) == missing_method_sections(told) == []


# --- errors -------------------------------------------------------------------------------------------

ROW = re.compile(r"^((?:[│ ]   )*(?:[├└]── )?)(\w+Error) +(\d+)  (.+)$", re.MULTILINE)


def drawn_tree() -> dict[str, tuple[str, int]]:
    """Return the tree in the module's docstring: each error's parent and exit code."""
    tree: dict[str, tuple[str, int]] = {}
    path: list[str] = []
    for branch, name, code, _ in ROW.findall(errors.__doc__ or ""):
        depth = len(branch) // 4
        path[depth:] = [name]
        tree[name] = (path[depth - 1] if depth else "Exception", int(code))
    return tree


def test_the_drawn_tree_is_the_hierarchy() -> None:
    classes = {name: getattr(errors, name) for name in ERRORS}
    assert drawn_tree() == {name: (c.__bases__[0].__name__, c.exit_code) for name, c in classes.items()}


def test_exit_codes_do_not_collide() -> None:
    others = {0, errors.EXIT_DIFFERS, errors.EXIT_INTERRUPTED, errors.EXIT_PREEMPTED}
    assert len(others) == 4
    assert others.isdisjoint({getattr(errors, name).exit_code for name in ERRORS})
    last_line = (errors.__doc__ or "").strip().splitlines()[-1]
    assert {int(n) for n in re.findall(r"\b\d+\b", last_line)} == others


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_reads_what_expected_found_remedy(name: str) -> None:
    error = getattr(xptrain, name)("it broke", expected="a whole one", found="pieces", remedy="glue it")
    assert isinstance(error, errors.XptrainError)
    assert str(error).splitlines() == [
        "it broke",
        "  expected: a whole one",
        "  found:    pieces",
        "  remedy:   glue it",
    ]
    assert (error.what, error.expected, error.found, error.remedy) == (
        "it broke",
        "a whole one",
        "pieces",
        "glue it",
    )


def test_an_error_shows_only_the_parts_it_has() -> None:
    assert str(errors.UsageError("it broke", remedy="glue it")) == "it broke\n  remedy:   glue it"


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_has_a_docstring_of_its_own(name: str) -> None:
    assert missing_line(vars(getattr(errors, name)).get("__doc__") or "") == []


def bare_raises(source: str, path: str) -> list[str]:
    """Return where an error of ours is made without saying what was expected, found, or to be done."""
    return [
        f"{path}:{node.lineno}: {name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and (name := node.func.id if isinstance(node.func, ast.Name) else "") in ERRORS
        and not {keyword.arg for keyword in node.keywords} & {"expected", "found", "remedy", None}
    ]


def test_every_error_made_says_more_than_what_broke() -> None:
    found = [
        place
        for file in sorted(PACKAGE.rglob("*.py"))
        for place in bare_raises(file.read_text(), file.relative_to(ROOT).as_posix())
    ]
    assert found == []


def test_the_check_of_bare_errors_can_fail() -> None:
    source = "raise UsageError('no')\nraise UsageError('no', found='1')\nraise ValueError('other')"
    assert bare_raises(source, "x.py") == ["x.py:1: UsageError"]


# --- version ------------------------------------------------------------------------------------------


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert xptrain.__version__ == project["version"]
    assert re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changes, re.MULTILINE)[0] == project["version"]


def test_the_package_tells_type_checkers_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
