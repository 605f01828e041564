"""Layout of variables: one device, and a model sharded over eight virtual ones."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from xptrain.provenance.sharding import describe_variables, summarize
from xptrain.state.digest import digest_array

EIGHT = """
import json, jax, keras, numpy as np
from xptrain.provenance.sharding import describe_variables, summarize
from xptrain.provenance.devices import capture_devices
mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"], keras.distribution.list_devices())
layout = keras.distribution.LayoutMap(mesh)
layout[".*kernel"] = (None, "model")
keras.distribution.set_distribution(
    keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
records = [(f"model/{i}", "trainable", v.path, v.value) for i, v in enumerate(model.trainable_variables)]
records.append(("host/0", "host", "rng", np.zeros(3)))
described = describe_variables(records)
print(json.dumps([described, summarize(described), capture_devices()]))
"""


def test_eight_devices(python: Callable[..., str]) -> None:
    text = python(EIGHT, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    (kernel, bias, host), summary, devices = json.loads(text)
    assert kernel["path"].endswith("kernel") and kernel["shape"] == [4, 8] and kernel["dtype"] == "float32"
    assert kernel["sharding"]["kind"] == "NamedSharding"
    assert kernel["sharding"]["mesh"] == {"batch": 2, "model": 4}
    assert kernel["sharding"]["spec"] == [None, "model"]
    assert kernel["sharding"]["devices"] == list(range(8)) and not kernel["sharding"]["replicated"]
    assert bias["sharding"]["replicated"] and bias["sharding"]["memory"]
    assert host["sharding"]["kind"] == "host"
    assert summary == {
        "mesh": {"batch": 2, "model": 4},
        "mesh_text": "batch=2,model=4",
        "devices": 8,
        "sharded": 1,
        "replicated": 2,
    }
    assert devices["count"] == 8 and devices["processes"] == 1 and len(devices["ids"]) == 8


def test_one_device() -> None:
    import jax.numpy as jnp

    described = describe_variables([("k", "optimizer", "adam/m", jnp.zeros((2, 3), jnp.bfloat16))])
    assert described[0]["sharding"]["kind"] == "SingleDeviceSharding"
    assert described[0]["dtype"] == "bfloat16"
    assert summarize(described) == {"mesh": {}, "mesh_text": "", "devices": 1, "sharded": 0, "replicated": 1}


def test_axes_of_one_dimension_over_two_mesh_axes() -> None:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((1, 1), ("a", "b"))
    array = jax.device_put(np.zeros((4, 2)), NamedSharding(mesh, PartitionSpec(("a", "b"), None)))
    assert describe_variables([("k", "r", "p", array)])[0]["sharding"]["spec"] == [["a", "b"], None]


def test_no_variables() -> None:
    assert summarize([]) == {"mesh": {}, "mesh_text": "", "devices": 0, "sharded": 0, "replicated": 0}


def test_digests_are_of_the_bits_wherever_they_lie() -> None:
    import jax.numpy as jnp

    array = np.arange(6, dtype="float32").reshape(2, 3)
    flipped = array.copy()
    flipped.view(np.uint32)[1, 2] ^= 1

    class Spread:
        """One process's part of an array that others hold, too."""

        shape, dtype, is_fully_addressable = (2, 3), "float32", False

    records = [("k", "r", "p", a) for a in (array, jnp.asarray(array), flipped, Spread())]
    host, device, other, spread = describe_variables(records)
    assert host["digest"] == device["digest"] == digest_array(array)
    assert other["digest"] != host["digest"]
    assert "digest" not in spread
