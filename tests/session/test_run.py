"""Runs from start to resume, in one process: what is restored, refused, recorded and left usable."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import xptrain
from tests.examples import X, Y, dropout_model, small, variable_digests
from tests.session.conftest import Runs
from xptrain import errors
from xptrain.cli import showing

pytestmark = pytest.mark.usefixtures("no_keras_fit")


def fit(run: Any, model: Any, *callbacks: Any, **arguments: Any) -> Any:
    given = {"x": X, "y": Y, "batch_size": 8, "epochs": 4, "verbose": 0, "validation_data": (X[:8], Y[:8])}
    return run.fit(model, **{**given, "callbacks": list(callbacks), **arguments})


SEEN: list[int] = []


class Seen(keras.callbacks.Callback):
    """Writes the epochs it sees into a list of the module: what a callback itself holds would be restored."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        SEEN.append(epoch)


def straight(runs: Runs, key: str = "straight", **arguments: Any) -> tuple[dict[str, str], Any]:
    with runs.open(key) as run:
        model = dropout_model()
        history = fit(run, model, Seen(), **arguments)
    return variable_digests(model), history.history


def test_a_run_that_is_stopped_by_an_error_is_resumed_exactly(
    runs: Runs, stop_at: Callable[[int], Any]
) -> None:
    digests, history = straight(runs)
    with pytest.raises(RuntimeError, match="stopped by the test"), runs.open("cut") as run:
        fit(run, dropout_model(), stop_at(13))
    assert runs.status("cut") == "FAILED"
    with runs.open("cut", resume=True) as run:
        assert run.attempt == 2
        model = dropout_model()
        resumed = fit(run, model, stop_at(10**6))
    assert variable_digests(model) == digests
    assert resumed.history == history
    assert runs.status("cut") == "FINISHED"
    assert runs.points("cut") == runs.points("straight")
    assert not runs.records("cut", "divergence")
    assert runs.tags("cut")["xptrain.attempt.2.from_step"] == "10"


def test_case_7_goes_on_inside_an_epoch(runs: Runs, stop_at: Callable[[int], Any]) -> None:
    policy = (xptrain.every(steps=3), xptrain.keep(2))
    digests, history = straight(runs, batch_size=4)
    with pytest.raises(RuntimeError), runs.open("cut", checkpoint=policy) as run:
        fit(run, dropout_model(), stop_at(18), batch_size=4)
    with runs.open("cut", resume=True, checkpoint=policy) as run:
        model = dropout_model()
        resumed = fit(run, model, stop_at(10**6), batch_size=4)
    # Batch 7 of epoch 1 is step 18: its save may or may not have been committed before the error.
    assert runs.tags("cut")["xptrain.attempt.2.from_step"] in ("15", "18")
    assert int(model.optimizer.iterations) == 40
    assert variable_digests(model) == digests
    assert resumed.history == history
    assert runs.points("cut") == runs.points("straight")


@pytest.mark.parametrize("append", [True, False])
def test_rows_of_an_attempt_without_a_checkpoint_are_written_once(
    runs: Runs, stop_at: Callable[[int], Any], tmp_path: Any, append: bool
) -> None:
    policy = (xptrain.every(epochs=4),)
    files = {key: tmp_path / f"{key}.csv" for key in ("straight", "cut")}

    def logger(key: str) -> Any:
        return keras.callbacks.CSVLogger(str(files[key]), append=append)

    for file in files.values():
        file.write_text("epoch,loss,mae,val_loss,val_mae\n0,1.0,1.0,1.0,1.0\n")
    with runs.open("straight", checkpoint=policy) as run:
        fit(run, dropout_model(), logger("straight"), stop_at(10**6))
    for batches in (13, 8):
        with pytest.raises(RuntimeError), runs.open("cut", resume=batches == 8, checkpoint=policy) as run:
            fit(run, dropout_model(), logger("cut"), stop_at(batches))
    told = pytest.warns(UserWarning, match="was cut back") if append else nullcontext()
    with told, runs.open("cut", resume=True, checkpoint=policy) as run:
        assert run.attempt == 3
        fit(run, dropout_model(), logger("cut"), stop_at(10**6))
    assert files["cut"].read_text() == files["straight"].read_text()
    assert len(files["cut"].read_text().splitlines()) == (6 if append else 5)


def test_case_8_a_later_fit_is_a_fit_of_its_own(runs: Runs, stop_at: Callable[[int], Any]) -> None:
    with pytest.raises(RuntimeError), runs.open("cut") as run:
        fit(run, dropout_model(), Seen(), stop_at(13))
    SEEN.clear()
    with runs.open("cut", resume=True) as run:
        model = dropout_model()
        first = fit(run, model, Seen(), stop_at(10**6))
        assert SEEN == [2, 3]
        assert first.epoch == [0, 1, 2, 3]
        second = fit(run, model, Seen(), epochs=2)
        assert SEEN == [2, 3, 0, 1]
        assert second.epoch == [0, 1]
    epochs = sorted({step for name, step, _ in runs.points("cut") if name == "train/loss"})
    assert epochs == [0, 1, 2, 3, 4, 5]


def test_finished_fits_are_not_repeated(runs: Runs, stop_at: Callable[[int], Any]) -> None:
    def two(run: Any, *callbacks: Any) -> tuple[Any, Any, Any]:
        model = dropout_model()
        first = fit(run, model, Seen(), epochs=2, steps_per_epoch=None)
        between = variable_digests(model)
        second = fit(run, model, *callbacks, epochs=3)
        return model, (first.history, second.history), between

    with runs.open("whole") as run:
        model, histories, between = two(run, stop_at(10**6))
    with pytest.raises(RuntimeError), runs.open("cut") as run:
        two(run, stop_at(8))
    with runs.open("cut", resume=True) as run:
        resumed, found, at = two(run, stop_at(10**6))
    assert variable_digests(resumed) == variable_digests(model)
    assert found == histories
    assert at == between
    assert runs.points("cut") == runs.points("whole")


def test_a_finished_run_is_not_trained_again(runs: Runs) -> None:
    digests, history = straight(runs)
    SEEN.clear()
    with runs.open("straight", resume=True) as run:
        model = dropout_model()
        again = fit(run, model, Seen())
    assert SEEN == []
    assert again.history == history
    assert variable_digests(model) == digests


def test_more_epochs_extend_a_run_when_allowed(runs: Runs) -> None:
    digests, history = straight(runs, epochs=6)
    straight(runs, "short", epochs=4)
    with pytest.raises(errors.ChangedError, match="epochs"), runs.open("short", resume=True) as run:
        fit(run, dropout_model(), Seen(), epochs=6)
    with runs.open("short", resume=True, allow="epochs") as run:
        model = dropout_model()
        longer = fit(run, model, Seen(), epochs=6)
    assert longer.history == history
    assert variable_digests(model) == digests


def test_more_epochs_go_on_from_the_raw_weights(runs: Runs) -> None:
    def train(key: str, epochs: int, **opened: Any) -> dict[str, str]:
        with runs.open(key, **opened) as run:
            model = dropout_model(keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True))
            fit(run, model, keras.callbacks.SwapEMAWeights(), epochs=epochs)
        return variable_digests(model)

    expected = train("straight", 5)
    train("longer", 3)
    assert train("longer", 5, resume=True, allow="epochs") == expected


def test_fewer_epochs_than_trained_is_one_clear_error(runs: Runs) -> None:
    straight(runs)
    with pytest.raises(errors.UsageError, match="fewer epochs"), runs.open("straight", resume=True) as run:
        fit(run, dropout_model(), Seen(), epochs=3)
    # It is as finished as it was, and says who came since.
    assert runs.status("straight") == "FINISHED"
    assert "fewer epochs" in runs.tags("straight")["xptrain.attempt.2.refused"]


def test_a_new_run_does_not_go_on_from_what_another_left(runs: Runs, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with runs.open("exp", checkpoint_dir=kept) as run:
        fit(run, small(), epochs=1)
    shutil.rmtree(runs.home / "runs")
    with pytest.raises(errors.UsageError, match="that of another run"):
        runs.open("exp", checkpoint_dir=kept).start()
    assert not (runs.home / "runs" / "exp").exists()
    with runs.open("other", checkpoint_dir=kept) as run:
        fit(run, small(), epochs=1)
        assert run.step == 5


def test_a_run_folder_that_vanished_is_said(
    runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from xptrain.session.delivery import Delivery
    from xptrain.tracking.folder import RunFolder

    monkeypatch.undo()
    delivery = Delivery(RunFolder(runs.home / "runs" / "gone"), "", is_on=True)
    monkeypatch.setattr(Delivery, "keep", lambda self: None)
    delivery.wait()
    assert "its folder is gone" in capsys.readouterr().err


def test_another_model_is_refused_and_left_alone(runs: Runs, stop_at: Callable[[int], Any]) -> None:
    with pytest.raises(RuntimeError), runs.open("cut") as run:
        fit(run, dropout_model(), stop_at(13))
    with runs.open("cut", resume=True, allow=("config", "code", "topology", "callbacks")) as run:
        model = small()
        before = model.get_weights()
        with pytest.raises(errors.RestoreMismatchError) as caught:
            fit(run, model, stop_at(10**6))
        assert "batch_normalization" in str(caught.value)
        assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    with (
        pytest.raises(errors.RestoreMismatchError),
        runs.open("cut", resume=True, allow=("code", "topology")) as run,
    ):
        fit(run, small(), stop_at(10**6))
    assert "RestoreMismatchError" in runs.tags("cut")["xptrain.attempt.3.refused"]


def test_other_callbacks_are_refused(runs: Runs, stop_at: Callable[[int], Any]) -> None:
    with pytest.raises(RuntimeError), runs.open("cut") as run:
        fit(run, dropout_model(), stop_at(13))
    with pytest.raises(errors.ChangedError, match="callbacks"), runs.open("cut", resume=True) as run:
        fit(run, dropout_model())


def test_other_data_are_refused_and_allowed_lower_the_grade(
    runs: Runs, stop_at: Callable[[int], Any]
) -> None:
    with pytest.raises(RuntimeError), runs.open("cut") as run:
        fit(run, dropout_model(), stop_at(13))
    other = X.copy()
    other[3, 2] += 1e-6
    with pytest.raises(errors.ChangedError, match="data"), runs.open("cut", resume=True) as run:
        fit(run, dropout_model(), stop_at(10**6), x=other)
    with runs.open("cut", resume=True, allow="data", exactness="any") as run:
        fit(run, dropout_model(), stop_at(10**6), x=other)
        assert run.grade.level == "approximate"
    assert runs.tags("cut")["xptrain.grade"].startswith("approximate")


def test_a_changed_program_is_refused(runs: Runs, stop_at: Callable[[int], Any]) -> None:
    def model(rate: float) -> Any:
        return small(keras.optimizers.SGD(0.05, momentum=rate))

    with pytest.raises(RuntimeError), runs.open("cut") as run:
        fit(run, model(0.9), stop_at(13))
    with pytest.raises(errors.ChangedError, match="allow code"), runs.open("cut", resume=True) as run:
        fit(run, model(0.8), stop_at(10**6))


def test_a_changed_config_is_refused_and_the_recorded_one_is_given_back(runs: Runs) -> None:
    config = {"lr": 0.01, "net": {"width": 3}}
    with runs.open("configured", config=config) as run:
        assert run.config.net.width == 3
    with runs.open("configured", resume=True) as run:
        assert run.config.to_dict() == config
    with pytest.raises(errors.ChangedError) as caught:
        runs.open("configured", resume=True, config={**config, "lr": 0.02}).start()
    assert "0.01" in str(caught.value)
    assert "0.02" in str(caught.value)
    with runs.open("configured", resume=True, config={**config, "lr": 0.02}, allow="config") as run:
        assert run.config.lr == 0.02
    assert runs.records("configured", "params")[0].fields["values"]["lr"] == "0.01"


def test_a_drawn_seed_is_recorded_and_given_back(runs: Runs) -> None:
    with runs.open("drawn", seed=None) as run:
        seed = run.seed
    with runs.open("drawn", seed=None, resume=True) as run:
        assert run.seed == seed


def test_resume_auto_starts_then_continues(runs: Runs, stop_at: Callable[[int], Any]) -> None:
    with pytest.raises(RuntimeError), runs.open("nightly", resume=False) as run:
        fit(run, dropout_model(), stop_at(13))
    with xptrain.run("tests", key="nightly", seed=0, resume="auto") as run:
        assert run.attempt == 2
    with xptrain.run("tests", key="night", seed=0, resume="auto") as run:
        assert run.attempt == 1


def test_a_live_run_is_not_resumed_by_a_second_one_case_30(runs: Runs) -> None:
    with runs.open("live"), pytest.raises(errors.RunLiveError):
        runs.open("live", resume=True).start()


def test_nan_loss_is_recorded_and_never_best(runs: Runs) -> None:
    class Spoil(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["score"] = [3.0, math.nan, 4.0, math.nan][epoch]

    policy = (xptrain.every(epochs=1), xptrain.keep(1), xptrain.best("score", "min"))
    with runs.open("nan", checkpoint=policy) as run:
        fit(run, small(), Spoil())
        folder = run.checkpoints.folder
    kept = sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    assert kept == [5, 20]
    values = [value for name, step, value in runs.points("nan") if name == "train/score"]
    assert sum(math.isnan(value) for value in values) == 2


def test_an_error_in_a_step_leaves_the_last_good_values(runs: Runs) -> None:
    class Break(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise ValueError("the user's own")

    model = small()
    with pytest.raises(ValueError, match="the user's own"), runs.open("broken") as run:
        fit(run, model, Break())
    assert int(model.optimizer.iterations) == 3
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert runs.records("broken", "status")[-1].fields["reason"] == "ValueError: the user's own"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SystemExit(3), "FAILED"),
        (SystemExit(0), "FINISHED"),
        (SystemExit(None), "FINISHED"),
        (KeyboardInterrupt(), "KILLED"),
        (MemoryError(), "FAILED"),
    ],
)
def test_status_is_true_case_30(runs: Runs, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)), runs.open("ended"):
        raise error
    assert runs.status("ended") == status


@pytest.mark.parametrize("leave", [lambda run: run._at_exit(), lambda run: run.finish()])
def test_a_run_that_is_only_opened_again_is_what_it_was(
    runs: Runs, stop_at: Callable[[int], Any], leave: Callable[[Any], None]
) -> None:
    with pytest.raises(RuntimeError), runs.open("cut") as run:
        fit(run, dropout_model(), stop_at(13))
    leave(runs.open("cut", resume=True).start())
    last = runs.records("cut", "status")[-1].fields
    assert (last["status"], last["reason"]) == ("FAILED", "RuntimeError: stopped by the test")
    with runs.open("cut", resume=True) as run:
        fit(run, dropout_model(), stop_at(10**6))
    leave(runs.open("cut", resume=True).start())
    assert runs.status("cut") == "FINISHED"


def test_what_a_resume_keeps_although_the_script_sets_it_is_told(
    runs: Runs, stop_at: Callable[[int], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError), runs.open("cut", config={"lr": 0.05}) as run:
        fit(run, dropout_model(keras.optimizers.Adam(run.config.lr)), stop_at(13))
    capfd.readouterr()
    with runs.open("cut", resume=True, config={"lr": 0.01}, allow="config") as run:
        model = dropout_model(keras.optimizers.Adam(run.config.lr))
        fit(run, model, stop_at(10**6))
    said = capfd.readouterr().err
    assert said.count("kept as in the checkpoint: ") == 1
    assert "learning_rate 0.05, not 0.01; `xptrain fork cut --step " in said
    assert float(model.optimizer.learning_rate) == np.float32(0.05)


def test_own_records(runs: Runs, tmp_path: Any) -> None:
    file = tmp_path / "labels.txt"
    file.write_text("a b")
    with runs.open("own", tags={"stage": "x"}, description="d") as run:
        run.log_metrics({"bleu": 0.5}, step=3)
        run.log_metrics({"bleu": 0.5}, step=3)
        run.log_metrics({"bleu": 0.6}, step=3)
        run.log_text("hello", "notes/a.txt")
        run.log_table({"c": [1]}, "t.csv")
        run.log_artifact(file)
        file.write_text("changed")
        run.set_tags({"more": 1})
    assert runs.points("own") == [("bleu", 3, 0.5)]
    assert len(runs.records("own", "divergence")) == 1
    kept = {r.fields["file"].rpartition("/")[2]: r.fields["file"] for r in runs.records("own", "artifact")}
    assert {"a.txt", "t.csv", "labels.txt"} <= kept.keys()
    assert (runs.home / "runs" / "own" / kept["labels.txt"]).read_text() == "a b"
    assert runs.tags("own")["stage"] == "x"


def test_use_before_start_and_after_the_end_says_what_to_do(runs: Runs) -> None:
    run = runs.open("lifecycle")
    with pytest.raises(errors.UsageError, match="not been started"):
        run.fit(small(), X, Y)
    run.start()
    run.finish()
    run.finish()
    with pytest.raises(errors.UsageError, match="finished"):
        run.log_metrics({"a": 1})


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"experiment": ""}, errors.UsageError),
        ({"experiment": "x", "config": {"f": object()}}, errors.ConfigError),
        ({"experiment": "x", "config": {"f": math.nan}}, errors.ConfigError),
        ({"experiment": "x", "config": [1]}, errors.ConfigError),
        ({"experiment": "x", "seed": -1}, errors.UsageError),
        ({"experiment": "x", "key": "Not/OK"}, errors.UsageError),
        ({"experiment": "x", "exactness": "mostly"}, errors.UsageError),
        ({"experiment": "x", "allow": "everything"}, errors.UsageError),
        ({"experiment": "x", "checkpoint": 3}, errors.UsageError),
        ({"experiment": "x", "preempt_on": ("SIGKILL",)}, errors.UsageError),
        ({"experiment": "x", "preempt_on": (15,)}, errors.UsageError),
        ({"experiment": "x", "preempt_on": 15}, errors.UsageError),
        ({"experiment": "x", "grace_s": 0}, errors.UsageError),
        ({"experiment": "x", "grace_s": True}, errors.UsageError),
        ({"experiment": "x", "grace_s": math.nan}, errors.UsageError),
        ({"experiment": "x", "grace_s": "25"}, errors.UsageError),
    ],
)
def test_bad_arguments_are_one_clear_error(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        xptrain.run(**arguments)
    assert "expected:" in str(caught.value)
    assert "found:" in str(caught.value) or "remedy:" in str(caught.value)


def test_an_unknown_run_is_not_found(runs: Runs) -> None:
    with pytest.raises(errors.RunNotFoundError):
        runs.open("nowhere", resume=True).start()


def test_a_model_that_is_not_compiled(runs: Runs) -> None:
    with pytest.raises(errors.NotCompiledError), runs.open("raw") as run:
        run.fit(keras.Sequential([keras.layers.Dense(1)]), X, Y)


def test_a_refused_attempt_leaves_the_status_as_it_was(
    runs: Runs,
    stop_at: Callable[[int], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = X.copy()
    other[3, 2] += 1e-6

    def refused(number: int, match: str, **given: Any) -> None:
        model = given.pop("model", dropout_model)()
        with pytest.raises(errors.ChangedError, match=match), runs.open("cut", resume=True) as run:
            fit(run, model, *given.pop("callbacks", [stop_at(10**6)]), **given)
        assert run.attempt == number
        told = runs.tags("cut")[f"xptrain.attempt.{number}.refused"]
        # What changed is in it, not only that something did.
        assert re.search(rf"moves bits changed since this run was started: .*{match}.* -> ", told), told

    with pytest.raises(RuntimeError), runs.open("cut") as run:
        fit(run, dropout_model(), stop_at(13))
    failed = runs.records("cut", "status")[-1].fields
    refused(2, "data", x=other)
    # The program is compared later than the data.
    refused(3, "lowered program", model=lambda: dropout_model(keras.optimizers.Adam(0.05, beta_1=0.8)))
    last = runs.records("cut", "status")[-1].fields
    assert (last["status"], last["reason"]) == (failed["status"], failed["reason"])
    assert last["status"] == "FAILED"
    with runs.open("cut", resume=True) as run:
        fit(run, dropout_model(), stop_at(10**6))
    # Refused before its first record: only its number is taken.
    with pytest.raises(errors.ChangedError, match="config"), runs.open("cut", resume=True, config={"a": 1}):
        pass
    refused(6, "epochs", epochs=6)
    # An attempt that was refused trained nothing: the run is finished all the same.
    assert runs.status("cut") == "FINISHED"
    monkeypatch.setattr(showing, "settle", lambda readings: None)
    showing.show_run("cut", as_json=False)
    shown = capsys.readouterr().out.partition("Attempts")[2].partition("Checkpoints")[0]
    assert shown.count("refused  ") == 3
    assert "6: ChangedError" in shown
    assert "not listed: 5; refused" in shown


def test_a_restore_that_fails_leaves_the_loggers_of_the_user_as_they_were(
    runs: Runs, stop_at: Callable[[int], Any], tmp_path: Any
) -> None:
    def logger() -> Any:
        return keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))

    with pytest.raises(RuntimeError), runs.open("cut") as run:
        fit(run, dropout_model(), stop_at(13), logger())
    allow = ("config", "code", "topology", "callbacks")
    mine = logger()
    with pytest.raises(errors.RestoreMismatchError), runs.open("cut", resume=True, allow=allow) as run:
        fit(run, small(), stop_at(10**6), mine)
    assert mine.append is False


def test_the_program_is_that_of_the_first_batch_wherever_a_run_goes_on(runs: Runs, stop_at: Any) -> None:
    def train(batches: int, **opened: Any) -> Any:
        with runs.open("cut", checkpoint=xptrain.every(epochs=1), **opened) as run:
            # Passes of six batches, the last of them short, in epochs of five.
            arguments = {"batch_size": 4, "steps_per_epoch": 5, "epochs": 3, "verbose": 0}
            run.fit(small(), X[:22], Y[:22], callbacks=[stop_at(batches)], **arguments)

    with pytest.raises(RuntimeError, match="stopped by the test"):
        train(6)
    train(-1, resume=True)
    assert runs.tags("cut")["xptrain.attempt.2.from_step"] == "5"
