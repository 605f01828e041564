"""Where two runs part and why: every kind of fault is named first, with at most two others beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xptrain
from tests.examples import X, Y, small
from tests.recorded_runs import MadeRun, make_run
from tests.session.conftest import Runs
from xptrain.analysis.causes import find as find_causes
from xptrain.analysis.explain import Explanation
from xptrain.analysis.judging import NOTHING_RECORDED
from xptrain.analysis.parting import StateParting
from xptrain.analysis.runs import find_run
from xptrain.errors import RunNotFoundError, UsageError
from xptrain.session import identity, life

Edit = Callable[[dict[str, Any]], None]


class Trained:
    """A small run that was really trained, and others like it but for one thing."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.fit("base")

    def fit(
        self,
        key: str,
        *,
        prepare: Callable[[Any], None] | None = None,
        model: Callable[..., Any] = small,
        settings: dict[str, Any] | None = None,
        resume: bool = False,
        **arguments: Any,
    ) -> None:
        given = {"config": {"rate": 0.05}, "checkpoint": (xptrain.every(epochs=1), xptrain.keep(1))}
        with self.runs.open(key, resume=resume, **{**given, **(settings or {})}) as run:
            made = model()
            made.optimizer.learning_rate = run.config.rate
            made.build((None, 4))
            made.optimizer.build(made.trainable_variables)
            if prepare:
                prepare(made)
            run.fit(made, **{"x": X, "y": Y, "batch_size": 8, "epochs": 3, "verbose": 0, **arguments})

    def path(self, key: str, attempt: int = 1) -> Path:
        return self.runs.home / "runs" / key / "manifest" / f"attempt-{attempt}.json"

    def manifest(self, key: str, attempt: int = 1) -> Any:
        return json.loads(self.path(key, attempt).read_text())

    def initial(self, key: str, attempt: int = 1) -> dict[str, str]:
        return {v["key"]: v["digest"] for v in self.manifest(key, attempt)["variables"]}

    def edit(self, key: str, change: Edit) -> None:
        record = self.manifest(key)
        change(record)
        self.path(key).write_text(json.dumps(record))


def without_recorder(patch: pytest.MonkeyPatch) -> None:
    for name in ("start", "keep", "wait"):
        patch.setattr(life.Delivery, name, lambda self: None)
    patch.setattr(identity, "PROCESS", identity.Process())


@pytest.fixture
def trained(isolated_home: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    without_recorder(monkeypatch)
    return Trained(Runs(isolated_home))


def first_cause(found: Explanation) -> str:
    assert found.equal is False
    assert 1 <= len(found.causes) <= 3
    return found.causes[0].kind


def flip_bit(model: Any) -> None:
    kernel = np.array(model.layers[0].kernel)
    kernel.view(np.uint32)[0, 0] ^= 1
    model.layers[0].kernel.assign(kernel)


def other_activation() -> Any:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model


def edited(record: dict[str, Any]) -> None:
    name = next(iter(record["code"]["files"]), "train.py")
    record["code"]["files"][name] = {"code": "0" * 64, "digest": "1" * 64}


REAL: dict[str, dict[str, Any]] = {
    "seed": {"settings": {"seed": 1}},
    "config": {"settings": {"config": {"rate": 0.01}}},
    "order": {"shuffle": False},
    "order ": {"batch_size": 10},
    "data": {"y": Y + np.eye(40, 1, dtype="float32") * 1e-3},
    "weights": {"prepare": flip_bit},
    "program": {"model": other_activation},
}


@pytest.mark.parametrize("fault", REAL)
def test_a_fault_that_was_trained_with_is_named_first(trained: Trained, fault: str) -> None:
    trained.fit("other", **REAL[fault])
    found = xptrain.explain("base", "other")
    assert first_cause(found) == fault.strip(), str(found)
    assert found.parting.point is not None
    assert found.parting.point.metric.startswith("batch/")
    if fault == "weights":
        assert found.headline == "the runs part at step 0: their initial variables differ"
        assert found.parting.state is not None
        assert found.parting.state.leaves == ("model/0.dense/kernel",)
        assert str(found.causes[0]) == "the initial weights: model/0.dense/kernel"
        assert len(found.causes) == 1
    if fault == "seed":
        assert [cause.kind for cause in found.consequences] == ["weights"]
        assert "seed 0 -> 1" in str(found)


def set_in(section: str, name: str, value: Any, *more: str) -> Edit:
    def change(record: dict[str, Any]) -> None:
        part = record[section]
        for inner in more:
            part = part[inner]
        part[name] = value

    return change


def new_jax(record: dict[str, Any]) -> None:
    for part in ("installed", "bit_movers"):
        record["packages"][part]["jaxlib"] = "9.9.9"
    record["program"]["train"] = "f" * 64


def flags(record: dict[str, Any]) -> None:
    record["flags"]["--xla_cpu_max_isa"] = "AVX2"
    record["environment"]["XLA_FLAGS"] = "--xla_cpu_max_isa=AVX2"
    record["program"]["train"] = "f" * 64


def new_code(record: dict[str, Any]) -> None:
    edited(record)
    record["program"]["train"] = "f" * 64


def new_jax_settings(record: dict[str, Any]) -> None:
    record["environment"]["JAX_ENABLE_X64"] = "1"
    record["jax_config"]["jax_enable_x64"] = True
    record["program"]["train"] = "f" * 64


RECORDED: dict[str, Edit] = {
    "packages": new_jax,
    "packages ": set_in("packages", "scipy", "9.9.9", "installed"),
    "flags": flags,
    "code": new_code,
    "code ": edited,
    "settings": new_jax_settings,
    "environment": set_in("environment", "PYTHONHASHSEED", "7"),
    "callbacks": lambda record: record.update(callbacks=[{"name": "EarlyStopping"}]),
    "fit": set_in("fit", "class_weight", {"0": 2.0}),
    "devices": set_in("devices", "kinds", {"other": 1}),
    "model": set_in("model", "learning_rate", 0.1, "optimizer"),
    "program": set_in("program", "train", "f" * 64),
}


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two runs of one manifest that part: a weight differed, and no record says so."""
    home = tmp_path_factory.mktemp("parted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XPTRAIN_HOME", str(home))
        without_recorder(patch)
        trained = Trained(Runs(home))

        def same_but_for_a_bit(record: dict[str, Any]) -> None:
            base = home / "runs" / "base" / "manifest" / "attempt-1.json"
            record.clear()
            record.update(json.loads(base.read_text()))

        trained.fit("other", prepare=lambda model: model.layers[1].bias.assign([1e-3]))
        trained.edit("other", same_but_for_a_bit)
    return home


@pytest.mark.parametrize("fault", RECORDED)
def test_a_fault_that_is_only_recorded_is_named_first(parted: Path, isolated_home: Path, fault: str) -> None:
    shutil.copytree(parted, isolated_home)
    for path in isolated_home.glob("runs/*/run.json"):
        path.write_text(path.read_text().replace(str(parted), str(isolated_home)))
    path = isolated_home / "runs" / "other" / "manifest" / "attempt-1.json"
    record = json.loads(path.read_text())
    RECORDED[fault](record)
    path.write_text(json.dumps(record))
    found = xptrain.explain("base", "other")
    assert first_cause(found) == fault.strip(), str(found)
    assert len(found.causes) == 1
    if fault in ("packages", "flags", "code"):
        assert [cause.kind for cause in found.consequences] == ["program"]
    # The same from the other side.
    assert first_cause(xptrain.explain("other", "base")) == fault.strip()


def wider(units: int) -> Any:
    import keras

    model = keras.Sequential([keras.Input((4,)), *[keras.layers.Dense(3) for _ in range(units)]])
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("in_config", [True, False])
def test_another_model_comes_before_what_follows_from_it(trained: Trained, in_config: bool) -> None:
    for layers in (1, 3):
        config = {"rate": 0.05, **({"layers": layers} if in_config else {})}
        trained.fit(f"deep{layers}", model=lambda n=layers: wider(n), settings={"config": config})
    found = xptrain.explain("deep3", "deep1")
    assert first_cause(found) == ("config" if in_config else "model"), str(found)
    assert len(found.causes) == 1
    assert "layers" in str(found.causes[0])
    follows = {cause.kind: cause for cause in found.consequences}
    # The digest of all shardings differs since there are other variables; nobody needs all of it.
    assert {"topology", "program", "weights"} <= follows.keys()
    assert all(len(value) == 12 for d in follows["topology"].differences for value in (d.before, d.after))


def test_another_layout_is_a_cause_of_its_own() -> None:
    def manifest(axis: str, *keys: str) -> dict[str, Any]:
        layout = {"mesh": {"batch": 2}, "spec": [axis]}
        variables = [{"key": key, "sharding": layout} for key in keys]
        digest = {"mesh": {}, "devices": 2, "digest": f"{axis}{len(keys)}"}
        return {"model": {"layers": len(keys)}, "topology": digest, "variables": variables}

    moved = find_causes(manifest("batch", "a", "b"), manifest("model", "a"))
    assert [cause.kind for cause in moved.causes] == ["model", "topology"]
    alike = find_causes(manifest("batch", "a", "b"), manifest("batch", "a"))
    assert [cause.kind for cause in alike.causes] == ["model"]
    assert [cause.kind for cause in alike.consequences] == ["topology"]


def test_as_many_tensors_are_counted_as_are_named() -> None:
    leaves, only = tuple(f"model/{n}" for n in range(6)), tuple(f"optimizer/{n}" for n in range(6))
    state = StateParting(0, leaves, 24, only)
    assert state.counted == "12 of 30 tensors (6 in one run only)"
    assert len(state.named(99).split(", ")) == 12
    assert StateParting(0, leaves, 24).counted == "6 of 24 tensors"


def test_the_first_state_and_the_first_value_are_found(trained: Trained) -> None:
    trained.fit("other", shuffle=False)
    found = xptrain.explain("base", "other")
    assert found.parting.last_equal == 0
    state, point = found.parting.state, found.parting.point
    assert state is not None
    assert state.step == 5
    assert "model/0.dense/kernel" in state.leaves
    # Only the newest checkpoint is on disk: the receipts are those of the ledger.
    assert found.parting.states == 3
    assert point is not None
    assert (point.metric, point.step) == ("batch/loss", 1)
    assert point.values[0] != point.values[1]
    assert found.headline == "the runs part after step 0 and by step 1"
    json.dumps(found.to_json(), allow_nan=False)


def test_equal_runs_are_equal_as_far_as_both_go(trained: Trained) -> None:
    trained.fit("longer", epochs=4)
    found = xptrain.explain("base", "longer")
    assert found.equal is True
    assert found.causes == ()
    assert found.headline == "equal as far as both go: up to step 15 (3 checkpoints compared)"
    assert [difference.name for difference in found.others] == ["fit epochs"]


def test_nothing_recorded_differs(parted: Path) -> None:
    found = xptrain.explain("base", "other", home=parted)
    assert first_cause(found) == "unknown"
    assert found.parting.initial_known
    assert "initial weights" not in str(found)
    assert found.grades[0].startswith(("exact", "approximate"))


def test_initial_weights_that_were_not_recorded_are_said(parted: Path, isolated_home: Path) -> None:
    shutil.copytree(parted, isolated_home)
    path = isolated_home / "runs" / "other" / "manifest" / "attempt-1.json"
    record = json.loads(path.read_text())
    for variable in record["variables"]:
        del variable["digest"]
    path.write_text(json.dumps(record))
    found = xptrain.explain("base", "other")
    assert first_cause(found) == "weights"
    assert found.causes[0].perhaps
    assert "the initial weights cannot be compared: other has no digests of them" in str(found)
    # As long as nothing parts, too.
    alike = xptrain.explain("other", "base").notes
    assert any("the initial weights cannot be compared" in note for note in alike)


@pytest.mark.parametrize("stop_before", [0, 7])
def test_each_attempt_may_make_its_own_initial_weights(trained: Trained, stop_before: int) -> None:
    """What counts is what was trained: those of the attempt that began at step 0, and no later ones."""
    import keras

    class Stop(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if attempts == 1 and int(self.model.optimizer.iterations) == stop_before:
                raise ZeroDivisionError("on purpose")

    attempts = 0
    trained.fit("straight", callbacks=[Stop()])
    attempts = 1
    with pytest.raises(ZeroDivisionError):
        trained.fit("cut", prepare=None if stop_before else flip_bit, callbacks=[Stop()])
    attempts = 2
    trained.fit("cut", resume=True, prepare=flip_bit if stop_before else None, callbacks=[Stop()])
    if stop_before:
        assert trained.initial("cut", 1) != trained.initial("cut", 2)
    # Other fresh weights are no change that is told, refused or lowers a grade.
    assert trained.manifest("cut", 2)["differences"] == []
    found = xptrain.explain("straight", "cut")
    assert found.equal is True
    assert found.parting.initial_known
    assert found.grades[0] == found.grades[1]
    assert found.others == ()


def made(home: Path, key: str, *, loss: float, value: float) -> MadeRun:
    run = make_run(home, key).attempt().tell(("metrics", {"step": 4, "values": {"batch/loss": loss}}))
    for step in (2, 4):
        leaf = np.full(2, value if step == 4 else 0.0, "float32")
        run.checkpoint(step, epoch=step // 2, leaves={"model/0.dense/kernel": leaf})
    return run.status("FINISHED")


def test_values_that_part_for_no_recorded_reason(isolated_home: Path) -> None:
    made(isolated_home, "aaaa0001", loss=1.0, value=1.0)
    made(isolated_home, "bbbb0002", loss=1.5, value=2.0)
    found = xptrain.explain("aaaa", "bbbb")
    assert [cause.kind for cause in found.causes] == ["unknown"]
    assert str(found.causes[0]) == NOTHING_RECORDED
    assert found.headline == "the runs part after step 2 and by step 4"
    assert found.parting.state is not None
    assert found.parting.state.leaves == ("model/0.dense/kernel",)


def test_points_go_by_step_within_a_metric_and_by_time_between_metrics(isolated_home: Path) -> None:
    for key, more in (("aaaa0001", 0.0), ("bbbb0002", 1.0)):
        run = make_run(isolated_home, key).attempt()
        run.tell(("metrics", {"step": 0, "values": {"val/loss": 3.0 + more, "time/epoch_seconds": more}}))
        run.tell(("metrics", {"step": 7, "values": {"batch/loss": 7.0 + more}}))
        run.tell(("metrics", {"step": 6, "values": {"batch/loss": 6.0}}))
        run.tell(("metrics", {"step": 0, "values": {"val/loss": 9.0}}))
    found = xptrain.explain("aaaa", "bbbb")
    assert found.parting.point is not None
    assert (found.parting.point.metric, found.parting.point.values) == ("val/loss", (3.0, 4.0))
    assert found.parting.points == 3


def test_a_later_attempt_counts_only_when_it_began_before_the_runs_parted(
    parted: Path, isolated_home: Path
) -> None:
    shutil.copytree(parted, isolated_home)
    other = isolated_home / "runs" / "other"
    record = json.loads((other / "manifest" / "attempt-1.json").read_text())
    new_jax(record)
    (other / "manifest" / "attempt-2.json").write_text(json.dumps(record))
    run = MadeRun(find_run("other"))
    for start, kind in ((0, "packages"), (10, "unknown")):
        run.attempt(2).tell(("tags", {"values": {"xptrain.attempt.2.from_step": str(start)}}))
        found = xptrain.explain("base", "other")
        assert first_cause(found) == kind, start
        assert any("jaxlib" in d.name for each in found.within for d in each.differences) is bool(start)
        assert found.causes[0].run == ("" if start else "other")
        # What a run changed is not mixed with what differs between the runs.
        assert not any("jaxlib" in d.name for d in found.others)
    assert [(each.run, each.where) for each in found.within] == [("other", "attempt 2, from step 10")]
    assert found.causes[0].where == ""


def test_a_torn_or_damaged_ledger_is_said(isolated_home: Path) -> None:
    runs_of = [made(isolated_home, key, loss=1.0, value=1.0) for key in ("aaaa0001", "bbbb0002")]
    ledger = runs_of[1].folder.checkpoints / "ledger.jsonl"
    text = ledger.read_text()
    ledger.write_text(text[:-40])
    found = xptrain.explain("aaaa", "bbbb")
    # The step's folder has its receipt, too.
    assert (found.equal, found.parting.states) == (True, 2)
    assert any("bbbb0002: the last line of its ledger is torn" in note for note in found.notes)
    shutil.rmtree(runs_of[1].folder.checkpoints / "000000000004")
    assert xptrain.explain("aaaa", "bbbb").parting.states == 1
    ledger.write_text("{" + text)
    assert any(
        "1 line of its ledger cannot be read" in note for note in xptrain.explain("aaaa", "bbbb").notes
    )


def test_runs_without_checkpoints_are_compared_by_their_values(isolated_home: Path) -> None:
    for key in ("aaaa0001", "bbbb0002"):
        make_run(isolated_home, key).attempt().epoch(0, steps=4, loss=1.0)
    found = xptrain.explain("aaaa", "bbbb")
    assert found.equal is None
    assert "no step has a checkpoint in both runs; all that both logged is equal (1 points)" in str(found)
    assert any("aaaa0001: no checkpoint" in note for note in found.notes)
    make_run(isolated_home, "cccc0003", setup={"seed": 5})
    found = xptrain.explain("aaaa", "cccc")
    assert found.headline == "nothing to compare: the runs have no checkpoint and no logged value in common"
    assert [difference.name for difference in found.others] == ["seed"]


def test_bad_names_are_refused(isolated_home: Path) -> None:
    make_run(isolated_home, "aaaa0001")
    with pytest.raises(UsageError, match="two runs"):
        xptrain.explain("aaaa", "aaaa0001")
    with pytest.raises(RunNotFoundError, match="no run is called 'zzzz'"):
        xptrain.explain("aaaa", "zzzz")


@pytest.mark.parametrize("text", ["{", "[]", '{"code": 3, "data": {"digest": 1}, "variables": null}'])
def test_a_manifest_that_cannot_be_used_is_said(isolated_home: Path, text: str) -> None:
    for key in ("aaaa0001", "bbbb0002"):
        run = make_run(isolated_home, key).attempt().manifest(None, data={"digest": "d", "leaves": {}})
    (run.folder.path / "manifest" / "attempt-1.json").write_text(text)
    assert any("manifest" in note for note in xptrain.explain("aaaa", "bbbb").notes)


def test_explaining_loads_no_tracker_and_no_backend(isolated_home: Path) -> None:
    for key in ("aaaa0001", "bbbb0002"):
        made(isolated_home, key, loss=1.0, value=1.0)
    code = (
        "import sys, xptrain; xptrain.explain('aaaa', 'bbbb');"
        "print(*{'mlflow', 'orbax', 'jax', 'keras'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
