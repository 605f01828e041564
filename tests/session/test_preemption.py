"""Runs that a signal stops, inside one process: where they stop, what is saved, who has the handlers."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import keras
import pytest

from tests.examples import X, Y, dropout_model, small, variable_digests
from tests.session.conftest import Runs
from xptrain.session import preemption
from xptrain.session.preemption import Preempted

pytestmark = pytest.mark.usefixtures("no_keras_fit")


@pytest.fixture(autouse=True)
def plain_signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    preemption._told.clear()
    preemption._first_heard.clear()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class SendAt(keras.callbacks.Callback):
    """Sends this process a signal at a step of the run."""

    def __init__(self, run: Any, step: int, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self._send = lambda: os.kill(os.getpid(), number) if run.step == step else None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._send()


def fit(run: Any, model: Any, *callbacks: Any, **arguments: Any) -> Any:
    given = {"x": X, "y": Y, "batch_size": 8, "epochs": 3, "verbose": 0, "validation_data": (X[:8], Y[:8])}
    return run.fit(model, **{**given, "callbacks": list(callbacks), **arguments})


def status(runs: Runs, key: str) -> tuple[str, str | None]:
    fields = runs.records(key, "status")[-1].fields
    return fields["status"], fields["reason"]


def test_a_signal_stops_after_the_step_and_resume_auto_goes_on(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    def both(key: str, resume: str = "never", step: int = 0) -> dict[str, str]:
        with _open(runs, key, resume) as run:
            model = dropout_model()
            fit(run, model, SendAt(run, step))
        return variable_digests(model)

    expected = both("straight")
    with pytest.raises(Preempted) as caught:
        both("cut", step=7)
    assert caught.value.code == 143
    assert status(runs, "cut") == ("KILLED", "SIGTERM: stopped after step 7, saved")
    assert "run cut: stopped after step 7, saved; `xptrain resume cut` goes on" in capsys.readouterr().err
    assert both("cut", resume="auto") == expected
    assert runs.points("cut") == runs.points("straight")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _open(runs: Runs, key: str, resume: str) -> Any:
    from xptrain import run
    from xptrain.session import identity

    identity.PROCESS = identity.Process()
    return run("tests", key=key, seed=0, resume=resume)


def test_the_model_stays_usable_and_the_next_fit_goes_on(runs: Runs) -> None:
    with runs.open("notebook") as run:
        model = dropout_model()
        with pytest.raises(KeyboardInterrupt):
            fit(run, model, SendAt(run, 4, signal.SIGINT))
        assert variable_digests(model)
        fit(run, model)
        # A first one again.
        with pytest.raises(KeyboardInterrupt):
            fit(run, model, SendAt(run, run.step + 2, signal.SIGINT))
    assert status(runs, "notebook") == ("FINISHED", None)


def test_a_signal_without_a_fit_stops_at_once(runs: Runs) -> None:
    with pytest.raises(Preempted) as caught, runs.open("idle"):
        os.kill(os.getpid(), signal.SIGUSR1)
        threading.Event().wait(5)
    assert caught.value.code == 128 + signal.SIGUSR1
    assert status(runs, "idle") == ("KILLED", "SIGUSR1: stopped at once")


@pytest.mark.parametrize(("later", "reason"), [(0.9, ", saved"), (1.1, "stopped at once")])
def test_two_signals_within_a_second_are_one(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, later: float, reason: str
) -> None:
    now = [100.0]
    monkeypatch.setattr(preemption, "_clock", lambda: now[0])

    def twice(batch: int, logs: Any) -> None:
        if batch == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            now[0] += later
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Preempted), runs.open("twice") as run:
        fit(run, dropout_model(), keras.callbacks.LambdaCallback(on_train_batch_end=twice))
    assert (status(runs, "twice")[1] or "").endswith(reason)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a handler of C code cannot be seen")
def test_a_handler_of_c_code_stays(runs: Runs, capfd: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryFile() as file:
        faulthandler.register(signal.SIGUSR1, file=file)
        try:
            with runs.open("c"):
                os.kill(os.getpid(), signal.SIGUSR1)
            file.seek(0)
            assert b"Current thread" in file.read()
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert "your own handler of SIGUSR1 stays" in capfd.readouterr().err
    assert status(runs, "c") == ("FINISHED", None)


def test_the_users_own_error_goes_first(runs: Runs) -> None:
    with pytest.raises(ZeroDivisionError), runs.open("error") as run:
        fit(run, dropout_model(), SendAt(run, 4), keras.callbacks.LambdaCallback(on_train_batch_end=fail))
    assert status(runs, "error")[0] == "FAILED"


def fail(batch: int, logs: Any) -> None:
    if batch == 3:
        raise ZeroDivisionError("on purpose")


def test_handlers_of_the_user_stay_and_ignored_signals_stay_ignored(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[int] = []

    def own(number: int, frame: Any) -> None:
        heard.append(number)

    signal.signal(signal.SIGTERM, own)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    for key in ("first", "second"):
        with runs.open(key) as run:
            os.kill(os.getpid(), signal.SIGUSR1)
            fit(run, dropout_model(), SendAt(run, 4))
    assert heard == [signal.SIGTERM, signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is own
    assert capsys.readouterr().err.count("your own handler of SIGTERM stays") == 1


def test_a_run_opened_in_another_thread_has_no_handlers(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        with runs.open("thread"):
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "outside the main thread" in capsys.readouterr().err
    assert status(runs, "thread")[0] == "FINISHED"


def test_of_two_open_runs_the_one_that_trains_is_stopped(runs: Runs) -> None:
    outer = runs.open("outer").start()
    inner = runs.open("inner").start()
    with pytest.raises(Preempted, match="143"):
        fit(outer, dropout_model(), SendAt(outer, 4))
    outer.finish("KILLED", "told to")
    with pytest.raises(Preempted):
        fit(inner, dropout_model(), SendAt(inner, 3))
    inner.finish()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def loop(runs: Runs, key: str, *, models: int = 1, send_at: int = -1, resume: bool = False) -> list[int]:
    done = []
    with runs.open(key, resume=resume) as run:
        made = [dropout_model(), small()][:models]
        trainers = [run.trainer(model) for model in made]
        for step in range(run.restore(*trainers), 12):
            if step == send_at:
                os.kill(os.getpid(), signal.SIGTERM)
            for trainer in trainers:
                logs = trainer.train_on_batch(X[:8], Y[:8], return_dict=True)
            run.log_metrics({"mine": logs["loss"]})
            done.append(step)
            if step % 4 == 3:
                run.checkpoint(*trainers)
        digests.update({key: [variable_digests(model) for model in made]})
    return done


digests: dict[str, Any] = {}


@pytest.mark.parametrize(
    # A loop of two trainers stops where it says that its state belongs together.
    ("models", "stops_after"),
    [(1, 6), (2, 8)],
)
def test_an_own_loop_stops_where_it_can_go_on(runs: Runs, models: int, stops_after: int) -> None:
    loop(runs, "straight", models=models)
    with pytest.raises(Preempted):
        loop(runs, "cut", models=models, send_at=5)
    assert status(runs, "cut") == ("KILLED", f"SIGTERM: stopped after step {stops_after}, saved")
    assert loop(runs, "cut", models=models, resume=True) == list(range(stops_after, 12))
    assert digests["cut"] == digests["straight"]
    assert runs.points("cut") == runs.points("straight")


def test_no_checkpoint_of_an_own_loop_stands_before_the_points_of_its_step(runs: Runs) -> None:
    run = runs.open("held").start()
    trainer = run.trainer(dropout_model())
    run.restore(trainer)
    trainer.train_on_batch(X[:8], Y[:8])
    run.checkpoint(trainer)
    os.kill(os.getpid(), signal.SIGTERM)
    trainer.train_on_batch(X[:8], Y[:8])
    # A kill while the loop evaluates, say: this step will be trained, and logged, again.
    run.checkpoints.wait(60)
    assert [path.name for path in run.checkpoints.folder.glob("0*")] == ["000000000001"]
    run.log_metrics({"mine": 1.0})
    with pytest.raises(Preempted):
        trainer.train_on_batch(X[:8], Y[:8])
    with suppress(Preempted):
        run.finish("KILLED")
    assert (run.checkpoints.folder / "000000000002").is_dir()
