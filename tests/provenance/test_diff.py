"""What counts as a change, what it is called, whether it is refused, and how the refusal reads."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from xptrain.errors import ChangedError, UsageError
from xptrain.provenance.diff.compare import compare, refuse
from xptrain.provenance.diff.difference import CATEGORIES, Difference, split
from xptrain.provenance.hazards import check
from xptrain.provenance.summary import difference_table, hazard_table, table

FILE = {"digest": "d" * 64, "code": "c" * 64}
BASE: dict[str, Any] = {
    "seed": 0,
    "config": {"lr": 0.1, "model": {"width": 64}},
    "program": {"train": "p" * 64, "test": "q" * 64},
    "code": {
        "files": {"train.py": FILE, "helper.py": FILE},
        "git": {"commit": "abc", "branch": "main"},
        "script": "/a/train.py",
        "interpreter": "/a/python",
        "argv": ["train.py", "--x"],
    },
    "packages": {
        "python": {"version": "3.11.7", "implementation": "CPython"},
        "installed": {"jaxlib": "0.10.1", "rich": "13.0"},
        "bit_movers": {"jaxlib": "0.10.1"},
    },
    "machine": {
        "host": "a",
        "system": "Linux 6",
        "arch": "x86_64",
        "memory": 10,
        "cpu": {"model": "Xeon", "features": "f" * 32},
        "cores": {"logical": 8, "physical": 4, "usable": 2, "threads": 2},
    },
    "environment": {"XLA_FLAGS": "--xla_a=1", "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"},
    "flags": {"--xla_a": "1"},
    "devices": {
        "platform": "cpu",
        "platform_version": "cpu",
        "kinds": {"cpu": 1},
        "count": 1,
        "local_count": 1,
        "processes": 1,
        "memory": None,
    },
    "topology": {
        "mesh": {},
        "mesh_text": "",
        "devices": 1,
        "sharded": 0,
        "replicated": 3,
        "digest": "t" * 64,
    },
    "jax_config": {"jax_enable_x64": False},
    "keras_config": {"floatx": "float32"},
    "data": {
        "digest": "e" * 64,
        "leaves": {"x": {"kind": "array", "dtype": "float32", "shape": [4], "digest": "1" * 64}},
    },
    "order": {"seed": 0, "shuffle": True},
    "fit": {"epochs": 3, "batch_size": 4, "verbose": 2},
    "callbacks": [{"name": "EarlyStopping", "settings": {"patience": 3}}],
    "hazards": [{"id": "hash-seed", "severity": "info", "title": "t", "evidence": "e"}],
}


def changed(path: str, value: Any, base: dict[str, Any] = BASE) -> dict[str, Any]:
    after = copy.deepcopy(base)
    *folders, last = path.split("|")
    at = after
    for part in folders:
        at = at[part]
    at[last] = value
    return after


def test_equal_manifests_do_not_differ() -> None:
    assert compare(BASE, json.loads(json.dumps(BASE))) == []


# (what changes, its new value, category, severity)
CASES = [
    ("seed", 1, "config", "refuse"),
    ("config|lr", 0.2, "config", "refuse"),
    ("config|model|width", 32, "config", "refuse"),
    ("config|new", 1, "config", "refuse"),
    ("program|train", "x" * 64, "code", "refuse"),
    ("program|test", "x" * 64, "code", "refuse"),
    ("code|files|helper.py", {"digest": "0" * 64, "code": "0" * 64}, "code", "tell"),
    ("code|files|new.py", FILE, "code", "tell"),
    ("code|git|commit", "def", "code", "tell"),
    ("code|git|branch", "fix", "code", "tell"),
    ("code|script", "/b/train.py", "code", "tell"),
    ("code|interpreter", "/b/python", "code", "tell"),
    ("code|argv", ["train.py", "--y"], "code", "tell"),
    ("packages|bit_movers|jaxlib", "0.12.0", "packages", "refuse"),
    ("packages|bit_movers|jax-cuda12-plugin", "0.10.1", "packages", "refuse"),
    ("packages|installed|rich", "14.0", "packages", "tell"),
    ("packages|python|version", "3.11.9", "packages", "tell"),
    ("packages|python|version", "3.12.0", "packages", "refuse"),
    ("machine|host", "b", "devices", "tell"),
    ("machine|system", "Linux 7", "devices", "tell"),
    ("machine|memory", 20, "devices", "tell"),
    ("machine|arch", "arm64", "devices", "refuse"),
    ("machine|cpu|model", "Xeon 2", "devices", "tell"),
    ("machine|cpu|features", "0" * 32, "devices", "refuse"),
    ("machine|cores|threads", 1, "devices", "refuse"),
    ("machine|cores|usable", 1, "devices", "tell"),
    ("environment|PYTHONPATH", "lib", "config", "tell"),
    ("environment|OMP_NUM_THREADS", "2", "config", "tell"),
    ("environment|NVIDIA_TF32_OVERRIDE", "0", "config", "refuse"),
    ("environment|TF_CUDNN_DETERMINISTIC", "1", "config", "refuse"),
    ("flags|--xla_a", "2", "config", "refuse"),
    ("flags|--xla_dump_to", "/tmp/x", "config", "tell"),
    ("flags|--xla_force_host_platform_device_count", "8", "topology", "refuse"),
    ("devices|platform", "gpu", "devices", "refuse"),
    ("devices|platform_version", "cuda 13", "devices", "refuse"),
    ("devices|kinds", {"H200": 1}, "devices", "refuse"),
    ("devices|count", 2, "topology", "refuse"),
    ("devices|processes", 2, "topology", "refuse"),
    ("topology|mesh", {"batch": 2}, "topology", "refuse"),
    ("topology|digest", "0" * 64, "topology", "refuse"),
    ("jax_config|jax_enable_x64", True, "config", "refuse"),
    ("keras_config|floatx", "float16", "config", "refuse"),
    ("data|digest", "0" * 64, "data", "refuse"),
    ("order|shuffle", False, "data", "refuse"),
    ("fit|epochs", 5, "epochs", "refuse"),
    ("fit|batch_size", 8, "config", "refuse"),
    ("fit|verbose", 0, "config", "tell"),
    ("callbacks", [{"name": "EarlyStopping", "settings": {"patience": 9}}], "callbacks", "refuse"),
    ("callbacks", [], "callbacks", "refuse"),
    ("hazards", [{"id": "z", "severity": "wrong", "title": "t", "evidence": "e"}], "hazards", "refuse"),
    ("hazards", [], None, None),
]


@pytest.mark.parametrize(("path", "value", "category", "severity"), CASES)
def test_each_change_is_named_and_weighed(
    path: str, value: Any, category: str | None, severity: str | None
) -> None:
    found = compare(BASE, changed(path, value))
    assert [(d.category, d.severity) for d in found] == ([(category, severity)] if category else [])
    if severity == "refuse":
        with pytest.raises(ChangedError):
            refuse(found)
        refuse(found, [str(category)])
        with pytest.raises(ChangedError):
            refuse(found, [name for name in CATEGORIES if name != category])
    else:
        refuse(found)


def test_case_32_another_core_count_is_refused_with_the_way_out() -> None:
    found = compare(BASE, changed("machine|cores|threads", 1))
    with pytest.raises(ChangedError) as error:
        refuse(found)
    text = str(error.value)
    assert "cores  2       1    refused; --allow devices" in text
    assert "NPROC=2 gives the old number of threads" in text
    assert "--allow devices" in (error.value.remedy or "")


def test_case_32_on_an_accelerator_host_cores_are_only_told() -> None:
    gpu = changed("devices|platform", "gpu")
    for path, value in (("machine|cores|threads", 1), ("machine|cpu|features", "0" * 32)):
        assert [d.severity for d in compare(gpu, changed(path, value, gpu))] == ["tell"]


def edited(code: str) -> dict[str, Any]:
    return changed("code|files|helper.py", {"digest": "0" * 64, "code": code})


def without_program(manifest: dict[str, Any]) -> dict[str, Any]:
    return {name: section for name, section in manifest.items() if name != "program"}


def test_a_comment_edit_is_told_even_before_the_program_is_known() -> None:
    found = compare(without_program(BASE), without_program(edited("c" * 64)))
    assert [(d.severity, d.note) for d in found] == [("tell", "comments, docstrings or layout only")]


def test_other_edits_are_refused_until_the_train_program_is_proven_equal() -> None:
    after = edited("0" * 64)
    assert [d.severity for d in compare(without_program(BASE), without_program(after))] == ["refuse"]
    assert [d.severity for d in compare(BASE, after)] == ["tell"]
    only_test = {**after, "program": {"test": "q" * 64}}
    assert [d.severity for d in compare(BASE, only_test)] == ["refuse"]


def test_syntax_trees_of_two_python_versions_are_not_compared() -> None:
    after = changed("packages|python|version", "3.12.1", without_program(edited("c" * 64)))
    assert [(d.name, d.severity) for d in compare(without_program(BASE), after)] == [
        ("Python", "refuse"),
        ("helper.py", "refuse"),
    ]


def test_sections_that_are_not_there_yet_are_not_compared() -> None:
    static = {name: BASE[name] for name in ("seed", "config", "code", "packages", "machine", "flags")}
    assert [d.severity for d in compare(BASE, static)] == []
    assert compare({**BASE, "topology": None}, BASE) == []


def test_numbers_compare_by_value_and_nan_is_itself() -> None:
    assert (
        compare({"config": {"a": 1, "b": [float("nan")]}}, {"config": {"a": 1.0, "b": [float("nan")]}}) == []
    )
    assert compare({"config": {"a": True}}, {"config": {"a": 1}})[0].before == "True"
    assert compare({"config": {"a": None}}, {"config": {}})[0].after == "not there"
    assert compare({"config": {"lr": 0.001}}, {"config": {"lr": "1e-3"}}) != []  # case 28


def test_the_data_note_names_what_changed() -> None:
    leaves = {"x": {**BASE["data"]["leaves"]["x"], "digest": "2" * 64}, "y": BASE["data"]["leaves"]["x"]}
    note = compare(BASE, changed("data", {"digest": "0" * 64, "leaves": leaves}))[0].note
    assert "x float32(4,) 11111111 -> float32(4,) 22222222" in note and "y nothing -> float32(4,)" in note


def test_the_refusal_is_a_table_of_both_sides() -> None:
    after = changed(
        "machine|host", "b", changed("packages|bit_movers|jaxlib", "0.12.0", changed("fit|epochs", 5))
    )
    with pytest.raises(ChangedError) as error:
        refuse(compare(BASE, after), ["code"])
    text = str(error.value)
    first, _, table = text.partition("\n\n")
    assert first.startswith("2 things that move bits changed since this run was started: ")
    assert table.startswith("what")
    assert "jaxlib      0.10.1  0.12.0  refused; --allow packages" in text
    assert "host        a       b       told" in text
    assert "--allow code,epochs,packages" in text
    assert error.value.exit_code == 5


def test_allow_takes_only_its_own_names() -> None:
    with pytest.raises(UsageError, match="kode"):
        refuse([], ["kode"])
    one = Difference("data", "x", "a", "b", "refuse")
    assert split([one], ["data"]) == ([], [one])
    assert split([one], "data") == ([], [one])


def test_tables_wrap_and_have_no_trailing_spaces() -> None:
    text = table(["a", "b"], [["x " * 30, "y"], ["", "z"]], widest=20)
    assert max(map(len, text.splitlines())) <= 25
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    many = [Difference("code", f"f{n}", "a", "b", "tell") for n in range(50)]
    assert "and 20 more" in difference_table(many)


def test_the_hazard_table_has_remedy_and_source() -> None:
    text = hazard_table(check({"PYTHONHASHSEED": "0"}, {"jaxlib": "0.10.2"}))
    assert "wrong: this jaxlib" in text and "remedy: pip install" in text and "126812" in text
    assert hazard_table([]) == "no known hazard"


def test_a_hazard_that_was_there_before_is_no_change() -> None:
    wrong = [{"id": "z", "severity": "wrong", "title": "t", "evidence": "e"}]
    assert compare(changed("hazards", wrong), changed("hazards", wrong)) == []
