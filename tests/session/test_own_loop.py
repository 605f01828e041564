"""Loops of the user's own, under the same resume law as fits."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import xptrain
from tests.examples import X, Y, dropout_model, small, variable_digests
from tests.session.conftest import Runs
from xptrain import errors

pytestmark = pytest.mark.usefixtures("no_keras_fit")


def batch(step: int) -> tuple[Any, Any]:
    order = np.random.default_rng(step).permutation(len(X))[:8]
    return X[order], Y[order]


def train(
    runs: Runs, key: str, *, stop: int | None = None, steps: int = 20, **opened: Any
) -> tuple[dict[str, str], list[int]]:
    """Train two models in turn; returns the digests of both, and the steps that this process trained."""
    done = []
    with runs.open(key, **opened) as run:
        models = [dropout_model(), small(keras.optimizers.SGD(0.01, momentum=0.9))]
        models[0].notes = []
        trainers = [run.trainer(model) for model in models]
        for step in range(run.restore(*trainers), steps):
            if step == stop:
                raise RuntimeError("stopped by the test")
            logs = trainers[0].train_on_batch(*batch(step), return_dict=True)
            trainers[1].train_on_batch(*batch(step + 100), class_weight=None)
            models[0].notes.append(np.random.random() + float(keras.random.uniform(())))
            run.log_metrics({"loss": logs["loss"], "note": sum(models[0].notes)})
            done.append(step)
            if step % 4 == 3:
                run.checkpoint(*trainers)
    digests = {f"{i}/{k}": v for i, model in enumerate(models) for k, v in variable_digests(model).items()}
    return digests, done


def test_an_own_loop_goes_on_where_it_was(runs: Runs) -> None:
    expected, _ = train(runs, "straight")
    with pytest.raises(RuntimeError):
        train(runs, "cut", stop=2)
    with pytest.raises(RuntimeError):
        train(runs, "cut", stop=10, resume=True)
    digests, done = train(runs, "cut", resume=True)
    assert done == list(range(8, 20))
    assert digests == expected
    assert runs.points("cut") == runs.points("straight")
    assert len(runs.points("cut")) == 40
    assert not runs.records("cut", "divergence")
    assert runs.tags("cut")["xptrain.grade"] == "exact: the batches are those of your own loop"


def test_a_finished_loop_is_not_trained_again_and_fits_follow(runs: Runs) -> None:
    def both(key: str, **opened: Any) -> tuple[dict[str, str], int]:
        with runs.open(key, **opened) as run:
            model = dropout_model()
            trainer = run.trainer(model)
            start = run.restore(trainer)
            for step in range(start, 6):
                trainer.train_on_batch(*batch(step))
            run.fit(model, X, Y, batch_size=8, epochs=2, verbose=0)
            if key == "cut" and run.attempt == 1:
                raise RuntimeError("stopped by the test")
            again = run.restore(trainer)
            for step in range(again, 3):
                trainer.train_on_batch(*batch(step))
        return variable_digests(model), start

    expected, start = both("straight")
    assert start == 0
    with pytest.raises(RuntimeError):
        both("cut")
    digests, start = both("cut", resume=True)
    assert start == 6
    assert digests == expected
    # Metrics begin anew with each batch: what the last one left in them is not kept.
    kept = {k: v for k, v in expected.items() if not k.startswith("metrics/")}
    assert kept.items() <= both("cut", resume=True)[0].items()


def test_steps_of_the_loop_may_be_counted_by_hand(runs: Runs) -> None:
    def twice(key: str, stop: int | None = None, **opened: Any) -> tuple[dict[str, str], list[int]]:
        done = []
        with runs.open(key, **opened) as run:
            model = dropout_model()
            trainer = run.trainer(model)
            for step in range(run.restore(trainer), 8):
                if step == stop:
                    raise RuntimeError("stopped by the test")
                trainer.train_on_batch(*batch(step))
                trainer.train_on_batch(*batch(step + 50))
                run.checkpoint(trainer, step=step + 1)
                done.append(step)
        return variable_digests(model), done

    expected, _ = twice("straight")
    with pytest.raises(RuntimeError):
        twice("cut", stop=5)
    digests, done = twice("cut", resume=True)
    assert done == [5, 6, 7]
    assert digests == expected


def test_a_changed_program_of_a_loop_is_refused(runs: Runs) -> None:
    def once(rate: float, **opened: Any) -> None:
        with runs.open("cut", **opened) as run:
            trainer = run.trainer(small(None, keras.layers.Dropout(rate)))
            run.restore(trainer)
            trainer.train_on_batch(*batch(0))
            run.checkpoint(trainer)
            raise RuntimeError("stopped by the test")

    with pytest.raises(RuntimeError):
        once(0.5)
    with pytest.raises(errors.ChangedError, match="lowered program"):
        once(0.4, resume=True)


def test_steps_of_several_shapes_are_not_taken_for_a_changed_program(runs: Runs) -> None:
    def train_all(key: str, stop: int | None = None, rate: float = 0.5, **opened: Any) -> dict[str, str]:
        with runs.open(key, **opened) as run:
            models = small(None, keras.layers.Dropout(rate)), small()
            trainers = [run.trainer(model) for model in models]
            for step in range(run.restore(*trainers), 8):
                if step == stop:
                    raise RuntimeError("stopped by the test")
                x, y = batch(step)
                # The last batch of four is smaller, and every other step has weights.
                end = 5 if step % 4 == 3 else 8
                weights = np.ones(end, "float32") if step % 2 else None
                trainers[0].train_on_batch(x[:end], y[:end], sample_weight=weights)
                trainers[1].train_on_batch(x, y)
                run.checkpoint(*trainers)
        return {
            **variable_digests(models[0]),
            **{f"1/{k}": v for k, v in variable_digests(models[1]).items()},
        }

    expected = train_all("straight")
    for stop in (1, 3, 4):
        with pytest.raises(RuntimeError):
            train_all(f"cut-{stop}", stop)
        assert train_all(f"cut-{stop}", resume=True) == expected
        assert runs.tags(f"cut-{stop}")["xptrain.grade"].startswith("exact")
    with pytest.raises(RuntimeError):
        train_all("other", 4)
    with pytest.raises(errors.ChangedError, match=r"train 0 float32\[8,4\]"):
        train_all("other", rate=0.4, resume=True)


def test_a_trainer_that_the_loop_does_not_know_is_refused(runs: Runs) -> None:
    with runs.open("two") as run:
        known, other = run.trainer(small()), run.trainer(small())
        run.restore(known)
        with pytest.raises(errors.UsageError, match="not one of the loop"):
            other.train_on_batch(*batch(0))
        known.train_on_batch(*batch(0))


def test_another_number_of_trainers_is_refused(runs: Runs) -> None:
    with pytest.raises(RuntimeError), runs.open("cut") as run:
        trainer = run.trainer(small())
        run.restore(trainer)
        trainer.train_on_batch(*batch(0))
        run.checkpoint(trainer)
        raise RuntimeError("stopped by the test")
    with (
        pytest.raises(errors.RestoreMismatchError, match="2 trainers"),
        runs.open("cut", resume=True, allow=("topology", "config")) as run,
    ):
        run.restore(run.trainer(small()), run.trainer(small()))


def test_other_models_are_refused_and_left_alone(runs: Runs) -> None:
    with runs.open("cut") as run:
        trainers = run.trainer(small()), run.trainer(small())
        run.restore(*trainers)
        for trainer in trainers:
            trainer.train_on_batch(*batch(0))
        run.checkpoint(*trainers)
    other = small(), dropout_model()
    before = [variable_digests(model) for model in other]
    with (
        pytest.raises(errors.ChangedError, match="sharding of the variables"),
        runs.open("cut", resume=True) as run,
    ):
        run.restore(*map(run.trainer, other))
    allowed = {"resume": True, "allow": ("topology", "config")}
    with pytest.raises(errors.RestoreMismatchError), runs.open("cut", **allowed) as run:
        run.restore(*map(run.trainer, other))
    assert [
        {k: v for k, v in variable_digests(m).items() if k in b} for m, b in zip(other, before, strict=True)
    ] == before


def test_bad_use_is_one_clear_error(runs: Runs) -> None:
    class Unbuilt(keras.Model):
        def call(self, inputs: Any) -> Any:
            return inputs

    with runs.open("run") as run:
        trainer = run.trainer(small())
        with pytest.raises(errors.UsageError, match="not those of the loop"):
            run.checkpoint(trainer)
        run.restore(trainer)
        with pytest.raises(errors.UsageError, match="not those of the loop"):
            run.checkpoint(run.trainer(small()))
        with pytest.raises(errors.UsageError, match="at least one trainer"):
            run.restore()
        unbuilt = Unbuilt()
        unbuilt.compile("adam", "mse")
        with pytest.raises(errors.UsageError, match="must be built"):
            run.restore(run.trainer(unbuilt))
    assert xptrain.Trainer(small()).steps == 0


class FailsAtRunTime(keras.layers.Layer):
    """Raises inside the compiled step, when it is told to."""

    fail = False

    def call(self, inputs: Any) -> Any:
        import jax

        def check(value: Any) -> Any:
            if FailsAtRunTime.fail:
                raise OSError("disk on fire")
            return value

        shape = jax.ShapeDtypeStruct(inputs.shape, inputs.dtype)
        return inputs + jax.lax.stop_gradient(jax.pure_callback(check, shape, jax.lax.stop_gradient(inputs)))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(FailsAtRunTime, "fail", False)
    return small(None, FailsAtRunTime())


def notes(error: BaseException) -> str:
    return " ".join(getattr(error, "__notes__", ()))


@pytest.mark.parametrize("saved", [True, False])
def test_a_step_that_fails_with_the_state_gives_back_the_last_snapshot(
    runs: Runs, failing: Any, saved: bool
) -> None:
    run = runs.open("fails").start()
    trainer = run.trainer(failing)
    run.restore(trainer)
    if saved:
        for step in range(2):
            trainer.train_on_batch(*batch(step))
        run.checkpoint(trainer)
    known = {k: v for k, v in variable_digests(failing).items() if not k.startswith("metrics/")}
    trainer.train_on_batch(*batch(2))
    FailsAtRunTime.fail = True
    with pytest.raises(Exception, match="disk on fire") as caught:
        trainer.train_on_batch(*batch(3))
    assert f"last snapshot again, of step {2 if saved else 0}" in notes(caught.value)
    assert known.items() <= variable_digests(failing).items()
    FailsAtRunTime.fail = False
    # The loop is at step 3 and the model is not: what came now would not be the run.
    with pytest.raises(errors.UsageError, match="earlier snapshot"):
        trainer.train_on_batch(*batch(3))
    with pytest.raises(errors.UsageError, match="earlier snapshot"):
        run.checkpoint(trainer)
    run.finish("FAILED")
    assert run.checkpoints.folder.joinpath("000000000002").exists() is saved
    assert np.isfinite(failing.predict(X, verbose=0)).all()


def test_without_a_run_a_failed_step_says_what_to_do(failing: Any) -> None:
    trainer = xptrain.Trainer(failing)
    trainer.train_on_batch(*batch(0))
    weights = failing.get_weights()
    FailsAtRunTime.fail = True
    with pytest.raises(Exception, match="disk on fire") as caught:
        trainer.train_on_batch(*batch(1))
    FailsAtRunTime.fail = False
    assert "Load the weights again" in notes(caught.value)
    failing.set_weights(weights)
    failing.compile("adam", "mse")
    assert np.isfinite(trainer.train_on_batch(*batch(1))).all()


class Best(keras.metrics.Metric):
    """A metric that is not all reset: the lowest loss so far stays."""

    def __init__(self, keeps: bool = True) -> None:
        super().__init__(name="best")
        self.lowest = self.add_variable((), keras.initializers.Constant(1e9), name="lowest")
        self.keeps = keeps

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        error = keras.ops.mean(keras.ops.abs(keras.ops.cast(y_pred, "float32")))
        self.lowest.assign(keras.ops.minimum(self.lowest.value, error))

    def reset_state(self) -> None:
        if not self.keeps:
            self.lowest.assign(1e9)

    def result(self) -> Any:
        return self.lowest.value


@pytest.mark.parametrize("keeps", [False, True])
def test_a_metric_that_is_not_all_reset_lowers_the_grade(runs: Runs, keeps: bool) -> None:
    model = dropout_model()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=[Best(keeps)])
    with runs.open("kept", exactness="any") as run:
        trainer = run.trainer(model)
        run.restore(trainer)
        for step in range(2):
            trainer.train_on_batch(*batch(step))
        run.checkpoint(trainer)
    grade = runs.tags("kept")["xptrain.grade"]
    assert ("what a metric of" in grade) is keeps
    assert grade.startswith("approximate" if keeps else "exact"), grade
