"""Devices and JAX settings. What captures starts the JAX backend: call it at the first fit, not before."""

from __future__ import annotations

import sys
from collections import Counter
from enum import Enum
from typing import Any, Final

# Settings of JAX that can change a program or the numbers it gives.
_SETTINGS: Final = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_threefry_partitionable",
    "jax_default_prng_impl",
    "jax_enable_custom_prng",
    "jax_legacy_prng_key",
    "jax_random_seed_offset",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_disable_jit",
    "jax_disable_most_optimizations",
    "jax_optimization_level",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_level",
    "jax_memory_fitting_effort",
    "jax_compiler_enable_remat_pass",
    "jax_softmax_custom_jvp",
    "jax_high_dynamic_range_gumbel",
    "jax_threefry_gpu_kernel_lowering",
    "jax_allow_f16_reductions",
    "jax_use_magma",
    "jax_bcoo_cusparse_lowering",
    "jax_use_shardy_partitioner",
    "jax_cpu_collectives_implementation",
    "jax_enable_pgle",
    "eager_constant_folding",
)


def backend_started() -> bool:
    """Tell whether JAX has started its backend, without starting it.

    Returns:
        False also when JAX was not imported yet.
    """
    jax = sys.modules.get("jax")
    if jax is None:
        return False
    # JAX refuses to change this setting once its backend runs: the public way to learn of it.
    count = jax.config.jax_num_cpu_devices
    try:
        jax.config.update("jax_num_cpu_devices", 2 if count == 1 else 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", count)
    return False


def capture_devices() -> dict[str, Any]:
    """Capture the devices that JAX sees. Starts the backend.

    Returns:
        JSON: `platform`, `platform_version`, `kinds` {kind: how many}, `count`, `local_count`, `ids`,
        `processes`, `process` and `memory` (bytes of one device, None if unknown).

    Example:
        >>> capture_devices()["platform"] in ("cpu", "gpu", "tpu")
        True
    """
    import jax

    devices = jax.devices()
    first = jax.local_devices()[0]
    stats = first.memory_stats() or {}
    return {
        "platform": first.platform,
        "platform_version": str(getattr(first.client, "platform_version", "")),
        "kinds": dict(sorted(Counter(device.device_kind for device in devices).items())),
        "count": len(devices),
        "local_count": len(jax.local_devices()),
        "ids": [device.id for device in devices],
        "processes": jax.process_count(),
        "process": jax.process_index(),
        "memory": stats.get("bytes_limit"),
    }


def capture_jax_config() -> dict[str, Any]:
    """Capture the JAX settings that move bits, as they hold where this is called (context managers too).

    Returns:
        Setting to value; a setting that the installed JAX does not have is left out.
    """
    import jax

    found = {}
    for name in _SETTINGS:
        if hasattr(jax.config, name):
            value = getattr(jax.config, name)
            value = value.value if isinstance(value, Enum) else value
            found[name] = value if isinstance(value, bool | int | float | str | None) else str(value)
    device = getattr(jax.config, "jax_default_device", None)
    return {**found, "jax_default_device": None if device is None else str(device)}


def capture_keras_config() -> dict[str, Any]:
    """Capture the Keras settings that move bits: backend, floatx, epsilon, image format, dtype policy.

    Returns:
        JSON of what `keras.config` says now.
    """
    import keras

    return {
        "backend": keras.config.backend(),
        "floatx": keras.config.floatx(),
        "epsilon": keras.config.epsilon(),
        "image_data_format": keras.config.image_data_format(),
        "dtype_policy": keras.config.dtype_policy().name,
    }
