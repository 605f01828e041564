"""The variables of a model and the keys under which checkpoints know them (law L3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from xptrain.state.records import Role, VariableRecord
from xptrain.training.keras_backend.outside import held_by

_ROLES: tuple[Role, ...] = ("trainable", "non_trainable", "optimizer", "metrics", "outside")


def build(model: Any, first: Callable[[], Any]) -> None:
    """Create every variable of model, metrics, loss and optimizer that is not there yet.

    Args:
        model: The model.
        first: Returns a batch with the shapes of the first one; called only if something is to be built.
    """
    model._symbolic_build(iterator=((0, 0, [first()]) for _ in range(1)))


def groups(model: Any) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Return the variables in the order of the train state: trainable, non-trainable, optimizer, metrics."""
    # A model that was never compiled has no such attribute.
    optimizer = getattr(model, "optimizer", None)
    return (
        model.trainable_variables,
        model.non_trainable_variables,
        [] if optimizer is None else list(optimizer.variables),
        model.metrics_variables,
    )


def records(model: Any) -> list[VariableRecord]:
    """Return every variable of the train state with its key, in the order of `groups`, then those outside.

    Raises:
        UsageError: If two variables would get one key.
    """
    keys = _layer_keys(model)
    keys.update(_optimizer_keys(model.optimizer, keys, "optimizer"))
    keys.update(_metric_keys(model))
    return _with_roles((*groups(model), outside(model)), keys)


def layer_records(model: Any) -> list[VariableRecord]:
    """Return the variables of the model's layers alone; the model need not be compiled."""
    trainable, non_trainable, _, _ = groups(model)
    return _with_roles((trainable, non_trainable, [], [], outside(model)), _layer_keys(model))


def outside(model: Any) -> list[Any]:
    """Return the variables of layers that are in no group: no step moves them."""
    seen = {id(variable) for group in groups(model) for variable in group}
    found = []
    for _, layer in _layers(model, "model"):
        for variable in held_by(layer):
            if id(variable) not in seen:
                seen.add(id(variable))
                found.append(variable)
    return found


def _with_roles(grouped: Sequence[list[Any]], keys: Mapping[int, str]) -> list[VariableRecord]:
    result = []
    for role, variables in zip(_ROLES, grouped, strict=True):
        for index, variable in enumerate(variables):
            key = keys.get(id(variable), f"{role}/other.{index}.{variable.name}")
            result.append(VariableRecord(key, role, variable.path, variable))
    return result


def _layer_keys(model: Any) -> dict[int, str]:
    keys: dict[int, str] = {}
    taken: set[str] = set()

    def claim(variable: Any, key: str) -> None:
        if id(variable) not in keys:
            keys[id(variable)] = _unique(key, taken)

    for prefix, layer in _layers(model, "model"):
        for variable in [*layer._trainable_variables, *layer._non_trainable_variables]:
            claim(variable, f"{prefix}/{_name(variable)}")
        for number, generator in enumerate(layer._seed_generators):
            claim(generator.state, f"{prefix}/seed.{number}")
    for prefix, layer in _layers(model, "model"):
        for variable in held_by(layer):
            claim(variable, f"{prefix}/{_name(variable)}")
    return keys


def _layers(layer: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Return a layer and all layers in it, each with its key; one may come by several keys."""
    yield key, layer
    # An input layer is there or not depending on how the model was written; it holds nothing.
    inner = [sublayer for sublayer in layer._layers if type(sublayer).__name__ != "InputLayer"]
    for position, sublayer in enumerate(inner):
        yield from _layers(sublayer, f"{key}/{position}.{_snake(type(sublayer).__name__)}")


def _optimizer_keys(optimizer: Any, layer_keys: dict[int, str], prefix: str) -> dict[int, str]:
    if optimizer is None:
        return {}
    keys: dict[int, str] = {}
    taken: set[str] = set()
    trained = getattr(optimizer, "_trainable_variables", None) or []
    own = {id(variable) for variable in optimizer.variables}
    for name, value in vars(optimizer).items():
        if name in ("_variables", "_trainable_variables"):
            continue
        if id(value) in own:
            keys[id(value)] = _unique(f"{prefix}/{name.lstrip('_')}", taken)
        elif isinstance(value, (list, tuple)) and len(value) == len(trained):
            for slot, variable in zip(value, trained, strict=True):
                if id(slot) in own:
                    of = layer_keys.get(id(variable), variable.path)
                    keys[id(slot)] = _unique(f"{prefix}/{name.lstrip('_')}/{of}", taken)
    for name, inner in _inner_optimizers(optimizer, prefix):
        keys.update(_optimizer_keys(inner, layer_keys, name))
    return keys


def _inner_optimizers(optimizer: Any, key: str) -> Iterator[tuple[str, Any]]:
    if getattr(optimizer, "inner_optimizer", None) is not None:
        yield f"{key}/inner", optimizer.inner_optimizer
    # Those of a MultiOptimizer.
    for number, inner in enumerate(getattr(optimizer, "optimizers", ())):
        yield f"{key}/inner.{number}", inner


def _metric_keys(model: Any) -> dict[int, str]:
    keys: dict[int, str] = {}
    taken: set[str] = set()
    for number, metric in enumerate(model.metrics):
        for variable in metric.variables:
            if id(variable) not in keys:
                key = f"metrics/{number}.{_snake(type(metric).__name__)}/{_name(variable)}"
                keys[id(variable)] = _unique(key, taken)
    return keys


def _name(variable: Any) -> str:
    # A variable without a name got one that counts those of the process.
    return re.sub(r"^variable_\d+$", "variable", str(variable.name))


def _unique(key: str, taken: set[str]) -> str:
    candidate, number = key, 1
    while candidate in taken:
        candidate, number = f"{key}~{number}", number + 1
    taken.add(candidate)
    return candidate


def _snake(name: str) -> str:
    from keras.src.utils.naming import to_snake_case

    return str(to_snake_case(name))


def owners(model: Any) -> dict[str, Any]:
    """Return the model and its parts that may hold Python attributes, by key, the model first."""
    found: dict[str, Any] = {}
    for key, layer in _layers(model, "model"):
        if not any(layer is other for other in found.values()):
            found[key] = layer
    optimizers = [] if model.optimizer is None else [("optimizer", model.optimizer)]
    for key, optimizer in optimizers:
        found[key] = optimizer
        # The list grows while it is walked.
        optimizers += _inner_optimizers(optimizer, key)
    return found | {
        f"metrics/{number}.{_snake(type(metric).__name__)}": metric
        for number, metric in enumerate(model.metrics)
    }


def global_seed() -> Any:
    """Return the state of Keras's global seed generator, or None while nothing has used it."""
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return None if generator is None else generator.state.value


def set_global_seed(state: Any) -> None:
    """Put Keras's global seed generator where `global_seed` saw it."""
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    if state is None:
        global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)
    else:
        seed_generator.global_seed_generator().state.assign(state)


def finish_restore(model: Any) -> None:
    """Let layers recompute what they derive from their variables (Normalization keeps its mean apart)."""
    for layer in model._flatten_layers():
        if getattr(layer, "built", False) and hasattr(layer, "finalize_state"):
            layer.finalize_state()


def average_pairs(model: Any, callbacks: Iterable[Any]) -> dict[str, str]:
    """Return key of weight → key of its moving average, when averages stand in for the weights now.

    `SwapEMAWeights(swap_on_epoch=True)` leaves them there at the end of an epoch.
    """
    import keras

    swapped = any(
        isinstance(callback, keras.callbacks.SwapEMAWeights) and callback._ema_weights_in_model
        for callback in callbacks
    )
    return all_average_pairs(model) if swapped else {}


def all_average_pairs(model: Any) -> dict[str, str]:
    """Return key of weight → key of its moving average, for every optimizer that keeps averages."""
    key_of = {id(record.variable): record.key for record in records(model)}
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    pairs = {}
    for one in getattr(optimizer, "optimizers", [optimizer]):
        averages = getattr(one, "_model_variables_moving_average", None) or []
        for weight, average in zip(one._trainable_variables, averages, strict=False):
            pairs[key_of[id(weight)]] = key_of[id(average)]
    return pairs


def is_built(model: Any) -> bool:
    """Tell whether every layer has its variables."""
    return all(layer.built for layer in model._flatten_layers())


def build_optimizer(model: Any) -> None:
    """Create the variables of a built model's optimizer."""
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def build_for_prediction(model: Any, first: Callable[[], Any]) -> None:
    """Build an unbuilt model from the inputs of the batch that `first` returns."""
    import keras

    if not is_built(model):
        with keras.StatelessScope():
            model(keras.utils.unpack_x_y_sample_weight(first())[0])
