"""States of callbacks: nothing dropped unsaid, identities kept, settings and secrets left alone."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.examples import small
from xptrain.checkpoint.receipts import plain
from xptrain.errors import RestoreMismatchError
from xptrain.state.python.states import PythonState


class Keeper(keras.callbacks.Callback):
    """Holds whatever attributes it is given, none of them by its constructor."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        vars(self).update(attributes)


class Given(keras.callbacks.Callback):
    """Holds what its constructor was given."""

    def __init__(self, given: Any = None, api_token: Any = None) -> None:
        super().__init__()
        self.given = given
        self.api_token = api_token


@dataclasses.dataclass
class Tally:
    count: int = 0
    seen: list[int] = dataclasses.field(default_factory=list)


class Phase(enum.Enum):
    WARM = 1
    MAIN = 2


def begun(callbacks: list[Any]) -> PythonState:
    states = PythonState(callbacks)
    for callback in callbacks:
        callback.on_train_begin()
    states.begin()
    return states


def captured(states: PythonState) -> tuple[Any, dict[str, Any]]:
    arrays: dict[str, Any] = {}
    return plain(states.capture(arrays)), arrays


def resumed(make: Callable[[], list[Any]], train: Callable[[list[Any]], None]) -> list[Any]:
    """Return new callbacks with the state that others had gathered; nothing may have been left out."""
    first, second = make(), make()
    states = begun(first)
    train(first)
    entries, arrays = captured(states)
    assert states.uncaptured == []
    begun(second).restore(entries, arrays)
    return second


def uncaptured(make: Callable[[], list[Any]], train: Callable[[list[Any]], None]) -> list[str]:
    callbacks = make()
    states = begun(callbacks)
    train(callbacks)
    captured(states)
    return [text.removeprefix(__name__ + ".") for text in states.uncaptured]


def counter() -> Callable[[], int]:
    seen = [0]
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        seen.append(calls)
        return sum(seen)

    return count


def teacher() -> Any:
    keras.utils.set_random_seed(3)
    return small()


# --- kinds --------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "metric": (keras.metrics.Mean, lambda m: (m.update_state(3.0), float(m.result()))),
    "variable": (lambda: keras.Variable(1.0), lambda v: (v.assign_add(1.0), float(v.value))),
    "seeds": (
        lambda: keras.random.SeedGenerator(3),
        lambda g: float(keras.random.uniform((), seed=g)),
    ),
    "generator": (lambda: np.random.default_rng(3), lambda g: g.random()),
    "philox": (lambda: np.random.Generator(np.random.Philox(3)), lambda g: g.standard_normal()),
    "random state": (lambda: np.random.RandomState(3), lambda g: g.standard_normal()),
    "python random": (lambda: random.Random(3), lambda g: g.gauss(0, 1)),
    "deque": (lambda: deque([1], maxlen=2), lambda d: (d.append(len(d) * 3 + d[-1]), repr(d))),
    "defaultdict": (lambda: defaultdict(list), lambda d: (d[f"k{9 - len(d)}"].append(len(d)), repr(d))),
    "counter": (Counter, lambda c: (c.update("ab"), repr(c))),
    "dataclass": (Tally, lambda t: (t.seen.append(len(t.seen)), setattr(t, "count", t.count + 1), repr(t))),
    "teacher": (
        teacher,
        lambda m: (m.layers[0].kernel.assign(m.layers[0].kernel * 2 + 1), m.get_weights()[0].tolist()),
    ),
    "closure": (counter, lambda f: f()),
    "array": (lambda: np.zeros(2), lambda a: (a.__iadd__(1), a.tolist())),
    "text array": (lambda: np.array(["", "abc"]), lambda a: (a.__setitem__(0, a[0] + "x"), a.tolist())),
    "records": (
        lambda: np.zeros(2, [("a", "i4"), ("b", "f8", (2,))]),
        lambda a: (a["b"].__iadd__(1), a.tolist()),
    ),
    "dates": (
        lambda: np.array(["2020-01-01"], "datetime64[D]"),
        lambda a: (a.__iadd__(np.timedelta64(1, "D")), a.tolist()),
    ),
    "date list": (list, lambda d: (d.append(datetime.datetime(2020, 1, 1 + len(d))), list(d))),
    "paths": (list, lambda d: (d.append(Path(f"a/{len(d)}")), list(d))),
    "set": (set, lambda s: (s.add(8 * (9 - len(s))), list(s))),
    "cycle": (lambda: [0], lambda c: (c.append(c), c[0])),
}


@pytest.mark.parametrize("place", ["by the constructor", "by itself"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_callback_holds_goes_on_as_if_nothing_had_happened(kind: str, place: str) -> None:
    make_value, use = KINDS[kind]

    def make() -> list[Any]:
        return [Given(make_value()) if place == "by the constructor" else Keeper(given=make_value())]

    straight = make()
    for _ in range(2):
        use(straight[0].given)
    (second,) = resumed(make, lambda callbacks: [use(callbacks[0].given) for _ in range(2)] and None)
    assert repr(use(second.given)) == repr(use(straight[0].given))


def test_an_order_of_keys_is_kept() -> None:
    def train(callbacks: list[Any]) -> None:
        callbacks[0].recent["z"] = callbacks[0].recent["a"] = 1
        callbacks[0].ordered.move_to_end("x")

    def make() -> list[Any]:
        return [Keeper(recent={}, ordered=OrderedDict(x=1, b=2))]

    (second,) = resumed(make, train)
    assert list(second.recent) == ["z", "a"]
    assert repr(second.ordered) == repr(OrderedDict(b=2, x=1))


def test_objects_made_since_the_fit_began_come_back() -> None:
    def train(callbacks: list[Any]) -> None:
        callbacks[0].window = deque([1.0], maxlen=3)
        callbacks[0].again = callbacks[0].window
        callbacks[0].tally = Tally(3)

    (second,) = resumed(lambda: [Keeper(window=None, again=None, tally=Tally())], train)
    assert second.window == deque([1.0], maxlen=3)
    assert second.again is second.window
    assert second.tally == Tally(3)


def test_attributes_that_went_are_gone() -> None:
    (second,) = resumed(lambda: [Keeper(first=1)], lambda callbacks: delattr(callbacks[0], "first"))
    assert not hasattr(second, "first")


@pytest.mark.parametrize("name", ["writer", "csv_file", "append_header", "params"])
def test_names_that_keras_uses_elsewhere_are_no_reason_to_drop_a_state(name: str) -> None:
    (second,) = resumed(
        lambda: [Keeper(**{name: {"own": 0}})], lambda callbacks: setattr(callbacks[0], name, {"own": 3})
    )
    assert getattr(second, name) == {"own": 3}


# --- identity -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1])
def test_what_two_callbacks_and_the_script_share_stays_one(order: int) -> None:
    boxes: list[list[int]] = []

    def make() -> list[Any]:
        boxes.append([])
        return [Given(boxes[-1]), Keeper(box=boxes[-1])][::order]

    second = resumed(make, lambda callbacks: boxes[0].append(7))
    values = [callback.given if isinstance(callback, Given) else callback.box for callback in second]
    assert values[0] is values[1] is boxes[1]
    assert boxes[1] == [7]


def test_what_was_parted_since_the_beginning_stays_parted() -> None:
    def make() -> list[Any]:
        box: list[int] = []
        return [Keeper(box=box), Keeper(box=box)]

    def train(callbacks: list[Any]) -> None:
        callbacks[0].box = [1]
        callbacks[1].box.append(2)

    callbacks = make()
    original = callbacks[0].box
    first, second = resumed(iter([make(), callbacks]).__next__, train)
    assert (first.box, second.box) == ([1], [2])
    assert second.box is original


# --- what cannot be stored ------------------------------------------------------------------------------


def plain_function(x: Any) -> Any:
    return x


LOST: dict[str, tuple[Callable[[], list[Any]], Callable[[list[Any]], None], str]] = {
    "iterator": (lambda: [Keeper(it=iter([1]))], lambda c: None, "Keeper.it: builtins.list_iterator"),
    "constructor": (lambda: [Given(iter([1]))], lambda c: None, "Given.given: builtins.list_iterator"),
    "in a list": (lambda: [Keeper(its=[iter([1])])], lambda c: None, "Keeper.its[0]: builtins.list_iterator"),
    "in a closure": (
        lambda: [Keeper(f=(lambda it: lambda: next(it))(iter([1])))],
        lambda c: None,
        "Keeper.f{it}: builtins.list_iterator",
    ),
    "own factory": (lambda: [Keeper(d=defaultdict(Tally))], lambda c: None, "Keeper.d: "),
    "method of an object": (lambda: [Keeper(f=iter([1]).__next__)], lambda c: None, "Keeper.f: builtins"),
    "metric made late": (
        lambda: [Keeper(m=None)],
        lambda c: setattr(c[0], "m", keras.metrics.Mean()),
        "Keeper.m: keras.src.metrics.reduction_metrics.Mean, made after the fit began",
    ),
    "function changed": (
        lambda: [Keeper(f=plain_function)],
        lambda c: setattr(c[0], "f", len),
        "Keeper.f: builtins.builtin_function_or_method",
    ),
    "enum changed": (
        lambda: [Keeper(phase=Phase.WARM)],
        lambda c: setattr(c[0], "phase", Phase.MAIN),
        f"Keeper.phase: {__name__}.Phase",
    ),
}


@pytest.mark.parametrize("case", LOST)
def test_what_cannot_be_stored_is_named(case: str) -> None:
    make, train, text = LOST[case]
    (found,) = uncaptured(make, train)
    assert found.startswith(text)


def test_what_becomes_unstorable_later_is_named_then() -> None:
    callback = Keeper(late=None)
    states = begun([callback])
    captured(states)
    assert states.uncaptured == []
    callback.late = iter([1])
    captured(states)
    assert len(states.uncaptured) == 1


@pytest.mark.parametrize(
    "value",
    [plain_function, len, np.less, keras.ops.abs, keras.losses.MeanSquaredError(), Phase.WARM, json, Tally],
)
def test_what_training_cannot_change_is_not_named(value: Any) -> None:
    assert uncaptured(lambda: [Keeper(a=value), Given(value)], lambda callbacks: None) == []


def test_no_callback_of_keras_is_named_nor_a_child_of_one(tmp_path: Path) -> None:
    kinds = keras.callbacks
    bases: list[tuple[type, tuple[Any, ...]]] = [
        (kinds.EarlyStopping, ("loss",)),
        (kinds.ReduceLROnPlateau, ("loss",)),
        (kinds.ModelCheckpoint, (f"{tmp_path}/m.keras",)),
        (kinds.BackupAndRestore, (f"{tmp_path}/backup",)),
        (kinds.LearningRateScheduler, (lambda epoch, rate: rate,)),
        (kinds.CSVLogger, (f"{tmp_path}/log.csv",)),
        (kinds.SwapEMAWeights, ()),
        (kinds.RemoteMonitor, ()),
        (kinds.ProgbarLogger, ()),
        (kinds.TerminateOnNaN, ()),
        (kinds.History, ()),
    ]
    callbacks = [
        made
        for base, arguments in bases
        for made in (base(*arguments), type("Child", (base,), {"__module__": "users"})(*arguments))
    ]
    model = small(keras.optimizers.SGD(0.1, use_ema=True))
    model.fit(np.ones((4, 4)), np.ones((4, 1)), verbose=0)
    for callback in callbacks:
        callback.set_model(model)
        callback.set_params({"verbose": 0, "epochs": 2, "steps": 1})
    states = begun(callbacks)
    captured(states)
    assert states.uncaptured == []
    for callback in callbacks:
        if not isinstance(callback, (kinds.BackupAndRestore, kinds.RemoteMonitor)):
            callback.on_epoch_begin(0)
            callback.on_epoch_end(0, {"loss": 1.0})
    captured(states)
    assert states.uncaptured == []


def test_the_trained_model_and_its_parts_are_captured_elsewhere() -> None:
    model = small()
    callback = Keeper(layer=model.layers[0], optimizer=model.optimizer, whole=[model])
    callback.set_model(model)
    states = begun([callback])
    _, arrays = captured(states)
    assert states.uncaptured == []
    assert arrays == {}


def test_a_teacher_that_nobody_changes_is_not_stored() -> None:
    states = begun([Given(teacher())])
    entries, arrays = captured(states)
    assert states.uncaptured == []
    assert arrays == {}
    other = Given(teacher())
    before = other.given.get_weights()
    begun([other]).restore(entries, arrays)
    assert all(map(np.array_equal, before, other.given.get_weights()))


def test_an_odd_value_in_the_logs_costs_its_own_key_only() -> None:
    first, second = keras.callbacks.History(), keras.callbacks.History()
    states = begun([first])
    first.set_model(small())
    first.on_epoch_end(0, {"loss": 1.0, "odd": object(), "mae": 2.0})
    entries, arrays = captured(states)
    assert states.uncaptured == ["keras.src.callbacks.history.History.history['odd'][0]: builtins.object"]
    begun([second]).restore(entries, arrays)
    assert second.history == {"loss": [1.0], "mae": [2.0]}
    assert second.epoch == [0]


# --- settings and secrets -------------------------------------------------------------------------------


class Resetting(keras.callbacks.Callback):
    """Changes its settings as the fit begins."""

    def __init__(self, rate: float = 1.0, box: Any = None) -> None:
        super().__init__()
        self.rate = rate
        self.box = box

    def on_train_begin(self, logs: Any = None) -> None:
        self.rate = 0.0
        if self.box is not None:
            self.box.clear()


def test_a_setting_that_is_as_it_was_given_is_put_back_to_what_is_given_now() -> None:
    first = Resetting(1.0, [1, 2])
    states = begun([first])
    first.rate = 1.0
    first.box.extend([1, 2])
    entries, arrays = captured(states)
    box = [1, 2]
    second = Resetting(2.0, box)
    (change,) = begun([second]).restore(entries, arrays)
    assert second.rate == 2.0
    assert (change.name, change.before, change.after) == ("rate", "1.0", "2.0")
    assert second.box is box
    assert box == [1, 2]


def test_a_large_setting_that_on_train_begin_changes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xptrain.state.python.settings._KEPT_BYTES", 4)

    class Emptying(Given):
        def on_train_begin(self, logs: Any = None) -> None:
            self.given[:] = 0

    first = Emptying(np.ones(3))
    states = begun([first])
    first.given[:] = 1
    entries, arrays = captured(states)
    with pytest.raises(RestoreMismatchError, match="too large to be kept twice"):
        begun([Emptying(np.ones(3))]).restore(entries, arrays)


def test_secrets_are_in_no_record_and_are_no_loss() -> None:
    def make(secret: str) -> list[Any]:
        return [
            Given({"headers": {"Authorization": secret}}, api_token=secret),
            Keeper(password=secret, hf_token=secret, token_count=3, args=Tally()),
        ]

    states = begun(make("hunter2"))
    entries, arrays = captured(states)
    assert "hunter2" not in json.dumps(entries)
    assert arrays == {}
    assert states.uncaptured == []
    second = make("hunter3")
    changes = begun(second).restore(entries, arrays)
    assert changes == []
    assert second[0].api_token == second[1].password == "hunter3"


@pytest.mark.parametrize(
    "secret",
    [
        "https://hooks.slack.com/services/T0/B0/hunter2",
        "https://user:hunter2@host/metrics",
        ["https://host/api?token=hunter2", 3],
        {"url": "https://discord.com/api/webhooks/1/hunter2"},
    ],
)
def test_a_secret_is_known_by_its_looks_too(secret: Any) -> None:
    other = json.loads(json.dumps(secret).replace("hunter2", "hunter3"))
    states = begun([Given(secret), Keeper(where=secret)])
    entries, arrays = captured(states)
    assert "hunter2" not in json.dumps(entries)
    assert states.uncaptured == []
    second = [Given(other), Keeper(where=other)]
    assert begun(second).restore(entries, arrays) == []
    assert second[0].given == second[1].where == other


def test_where_keras_writes_moves_no_bits(tmp_path: Path) -> None:
    def make(name: str) -> list[Any]:
        return [
            keras.callbacks.ModelCheckpoint(str(tmp_path / f"{name}.keras")),
            keras.callbacks.EarlyStopping(patience=len(name)),
        ]

    entries, arrays = captured(begun(make("one")))
    changes = begun(make("three")).restore(entries, arrays)
    assert {change.name: change.moves_bits for change in changes} == {"filepath": False, "patience": True}


def test_a_secret_that_changes_is_named_without_its_value() -> None:
    found = uncaptured(
        lambda: [Keeper(session_token="a")],
        lambda callbacks: setattr(callbacks[0], "session_token", "hunter2"),
    )
    assert found == ["Keeper.session_token: a secret, which is never stored"]


# --- all or nothing -------------------------------------------------------------------------------------


class Own(keras.callbacks.Callback):
    def get_state(self) -> Any:
        return 1

    def set_state(self, state: Any) -> None:
        raise KeyError("mine")


def test_what_does_not_fit_is_found_before_anything_is_written() -> None:
    first = [Keeper(n=1), Keeper(metric=keras.metrics.Mean())]
    entries, arrays = captured(begun(first))
    second = [Keeper(n=5), Keeper(metric=None)]
    with pytest.raises(RestoreMismatchError, match=r"Keeper\.metric"):
        begun(second).restore(entries, arrays)
    assert second[0].n == 5
    with pytest.warns(UserWarning, match=r"not restored: .*Keeper\.metric"):
        states = begun(second)
        states.apply(states.decode(entries, arrays, strict=False))
    assert second[0].n == 1


def test_an_error_of_set_state_names_its_callback() -> None:
    entries, arrays = captured(begun([Own()]))
    with pytest.raises(KeyError, match="mine") as caught:
        begun([Own()]).restore(entries, arrays)
    assert "Own" in caught.value.__notes__[0]


def test_callbacks_may_come_in_another_order() -> None:
    first = [Keeper(metric=keras.metrics.Mean()), Given([1])]
    states = begun(first)
    first[0].metric.update_state(3.0)
    entries, arrays = captured(states)
    second = [Given([1]), Keeper(metric=keras.metrics.Mean())]
    begun(second).restore({**entries, "callbacks": entries["callbacks"][::-1]}, arrays)
    assert float(second[1].metric.result()) == 3.0


# --- files ----------------------------------------------------------------------------------------------


def logged(path: Path, epochs: range, *, append: bool = False, resume: Any = None) -> Any:
    """Log some epochs, from an earlier capture on if there is one; return the capture after the first."""
    logger = keras.callbacks.CSVLogger(str(path), append=append)
    states = PythonState([logger])
    prepared = states.prepare(resume is not None)
    logger.on_train_begin()
    states.begin()
    if resume is not None:
        states.restore(*resume, prepared)
    capture = None
    for epoch in epochs:
        logger.on_epoch_end(epoch, {"loss": epoch / 2})
        capture = capture or captured(states)
    logger.csv_file.close()
    return capture


@pytest.mark.parametrize("append", [False, True])
def test_rows_after_the_checkpoint_are_cut_off(tmp_path: Path, append: bool) -> None:
    path = tmp_path / "log.csv"
    capture = logged(path, range(3), append=append)
    whole = path.read_bytes()
    if append:
        with pytest.warns(UserWarning, match="cut back"):
            logged(path, range(1, 3), append=append, resume=capture)
        assert (tmp_path / "log.csv.cut-1").read_bytes().startswith(b"1,")
    else:
        logged(path, range(1, 3), append=append, resume=capture)
        assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == whole


def test_a_file_of_another_name_is_left_alone(tmp_path: Path) -> None:
    capture = logged(tmp_path / "a.csv", range(2))
    with pytest.warns(UserWarning, match="another file"):
        logged(tmp_path / "b.csv", range(1, 2), resume=capture)
    assert b"\0" not in (tmp_path / "b.csv").read_bytes()
    assert (tmp_path / "a.csv").read_text().count("\n") == 3


@pytest.mark.parametrize("text", ["", "epoch,loss\n7,1\n8,1\n9,1\n10,1\n"])
def test_a_file_that_became_another_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.csv"
    capture = logged(path, range(2))
    path.write_text(text)
    with pytest.warns(UserWarning, match="left alone"):
        logged(path, range(1, 2), resume=capture)
    assert path.read_text().startswith(text)


def test_rows_of_another_run_are_kept_beside(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    capture = logged(path, range(1))
    logged(path, range(3), append=True)
    with pytest.warns(UserWarning, match="cut-1"):
        logged(path, range(1, 2), resume=capture)
    assert (tmp_path / "log.csv.cut-1").read_text().count("\n") == 3
    assert path.read_text().splitlines()[1:] == ["0,0.0,NA", "1,0.5,NA"]


def test_a_start_over_takes_back_what_was_appended(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("mine\n")
    offsets = json.loads(
        json.dumps(PythonState([keras.callbacks.CSVLogger(str(path), append=True)]).file_offsets())
    )
    logged(path, range(2), append=True)
    states = PythonState([keras.callbacks.CSVLogger(str(path), append=True)])
    with pytest.warns(UserWarning, match="cut-1"):
        states.cut_files(offsets)
    assert path.read_text() == "mine\n"
    states.cut_files(offsets)
    assert len(list(tmp_path.iterdir())) == 2


class Delegating(keras.callbacks.Callback):
    """Leaves the work to a callback of Keras that the fit does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.inner.wait += 1


def test_a_callback_inside_a_callback_is_named() -> None:
    assert any("inner" in text for text in uncaptured(lambda: [Delegating()], lambda callbacks: None))


def test_an_object_that_a_function_given_to_keras_closes_over_is_named() -> None:
    class Seen:
        count = 0

    def make() -> list[Any]:
        seen = Seen()

        def rate(epoch: int, now: float) -> float:
            seen.count += 1
            return now / seen.count

        return [keras.callbacks.LearningRateScheduler(rate)]

    found = uncaptured(make, lambda callbacks: callbacks[0].schedule(0, 0.1))
    assert [text for text in found if "schedule{seen}" in text]
