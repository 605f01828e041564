"""How each variable is laid out over the devices, and which bits it holds.

Works on duck types: JAX is neither imported nor started.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from xptrain.state.digest import digest_array


def describe_variables(records: Iterable[tuple[str, str, str, Any]]) -> list[dict[str, Any]]:
    """Describe variables, their sharding and their bits.

    Args:
        records: Tuples (key, role, path, array); the array is a JAX or NumPy array of any shape.

    Returns:
        One JSON object each: `key`, `role`, `path`, `shape`, `dtype`, `sharding` (see `describe_sharding`)
        and `digest` (see `digest_array`), which an array that is spread over several processes lacks.

    Example:
        >>> import numpy as np
        >>> describe_variables([("m/0/kernel", "trainable", "dense/kernel", np.zeros((2, 3)))])[0]["shape"]
        [2, 3]
    """
    return [
        {
            "key": key,
            "role": role,
            "path": path,
            "shape": [int(size) for size in array.shape],
            "dtype": str(array.dtype),
            "sharding": describe_sharding(array),
            **({"digest": digest_array(array)} if getattr(array, "is_fully_addressable", True) else {}),
        }
        for key, role, path, array in records
    ]


def initial_digests(manifest: Mapping[str, Any], roles: Collection[str] = ()) -> dict[str, str]:
    """Return the digests of the variables before the first step by key, as far as they are recorded.

    Args:
        manifest: An attempt's manifest.
        roles: Only variables of these roles; all when empty.

    Returns:
        Digests (64 hexadecimal digits) by key.

    Example:
        >>> initial_digests({})
        {}
    """
    variables = manifest.get("variables") or ()
    wanted = [v for v in variables if isinstance(v.get("digest"), str)]
    return {v["key"]: v["digest"] for v in wanted if not roles or v["role"] in roles}


def describe_sharding(array: Any) -> dict[str, Any]:
    """Describe where an array lies.

    Args:
        array: A JAX array, or anything else, which lies on the host.

    Returns:
        `kind`, `devices` (ids in the mesh's order), `mesh` {axis: size}, `spec` (per dimension None, an
        axis or a list of axes), `memory` (kind, None if unknown) and `replicated`.
    """
    sharding = getattr(array, "sharding", None)
    if sharding is None:
        return {"kind": "host", "devices": [], "mesh": {}, "spec": [], "memory": None, "replicated": True}
    mesh: Any = getattr(sharding, "mesh", None)
    named = mesh is not None and hasattr(sharding, "spec")
    devices = mesh.devices.flat if named and hasattr(mesh, "devices") else sharding.device_set
    ids = [int(device.id) for device in devices]
    return {
        "kind": type(sharding).__name__,
        "devices": ids if named else sorted(ids),
        "mesh": {str(axis): int(size) for axis, size in mesh.shape.items()} if named else {},
        "spec": [_axes(part) for part in sharding.spec] if named else [],
        "memory": getattr(sharding, "memory_kind", None),
        "replicated": bool(sharding.is_fully_replicated),
    }


def summarize(variables: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Sum up what `describe_variables` returned, for tags and the comparison of topologies.

    Args:
        variables: The descriptions.

    Returns:
        `mesh` {axis: size} of the largest mesh, `mesh_text` such as `batch=2,model=4`, `devices` (how many
        hold any variable), `sharded` and `replicated` (how many variables are).
    """
    shardings = [variable["sharding"] for variable in variables]
    mesh: dict[str, int] = max(
        (s["mesh"] for s in shardings), key=lambda m: (len(m), sorted(m.items())), default={}
    )
    return {
        "mesh": mesh,
        "mesh_text": ",".join(f"{axis}={size}" for axis, size in mesh.items()),
        "devices": len({device for s in shardings for device in s["devices"]}),
        "sharded": sum(not s["replicated"] for s in shardings),
        "replicated": sum(s["replicated"] for s in shardings),
    }


def _axes(part: Any) -> str | list[str] | None:
    return (
        [str(axis) for axis in part]
        if isinstance(part, tuple | list)
        else None
        if part is None
        else str(part)
    )
