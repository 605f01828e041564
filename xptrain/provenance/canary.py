"""A canary: sums whose right value is known exactly, repeated until a bad backend is all but certain to err.

Each probe asks for a whole number that float32 holds exactly in any order of addition, so any other
answer is wrong, not rounded. See docs/design/hazards.md for how often known-bad versions err.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

# A racing sum errs in 1 to 99 of 100 calls, depending on load; a call takes 0.6 to 4 ms on two cores.
_SECONDS: Final = 0.08
_MIN_CALLS: Final = 8
_MAX_CALLS: Final = 100


@dataclass(frozen=True)
class Probe:
    """A question whose answer is known.

    Args:
        call: Asks it.
        right: The only right answer.
        races: True when a wrong answer comes by chance, so that it must be asked often.
    """

    call: Callable[[], float]
    right: float
    races: bool = True


@dataclass(frozen=True)
class Canary:
    """What the canary found.

    Args:
        wrong: Names of the probes that gave a wrong number.
        calls: Calls made, by probe; a probe stops at its first wrong answer.
        found: The first wrong answer and the right one, by probe.
        ms: Milliseconds all calls took, compiling included.
    """

    wrong: tuple[str, ...]
    calls: Mapping[str, int]
    found: Mapping[str, tuple[float, float]]
    ms: float

    @property
    def evidence(self) -> str:
        """One line for people."""
        if not self.wrong:
            return f"canary: {sum(self.calls.values())} known sums came out right"
        parts = []
        for name in self.wrong:
            answer, right = self.found[name]
            parts.append(f"{name} gave {answer:.10g} instead of {right:.10g} (call {self.calls[name]})")
        return f"canary: {'; '.join(parts)}"


def run_canary(
    probes: Mapping[str, Probe] | None = None,
    *,
    seconds: float = _SECONDS,
    min_calls: int = _MIN_CALLS,
    max_calls: int = _MAX_CALLS,
) -> Canary:
    """Repeat each probe until it errs or its time is up. With the default probes, starts the backend.

    Args:
        probes: By name; default `jax_probes()`.
        seconds: Time for each probe that races.
        min_calls: Calls of it that are made even if they take longer.
        max_calls: Calls after which it is believed.

    Returns:
        What was found.

    Example:
        >>> run_canary({"sum": Probe(lambda: 3.0, right=2.0)}).wrong
        ('sum',)
    """
    started = time.perf_counter()
    calls: dict[str, int] = {}
    found: dict[str, tuple[float, float]] = {}
    for name, probe in (jax_probes() if probes is None else probes).items():
        until = time.perf_counter() + seconds
        count = 0
        while count < 1 or (probe.races and (count < min_calls or time.perf_counter() < until)):
            answer = probe.call()
            count += 1
            if answer != probe.right:
                found[name] = (answer, probe.right)
            if answer != probe.right or count >= max_calls:
                break
        calls[name] = count
    return Canary(tuple(found), calls, found, (time.perf_counter() - started) * 1e3)


def jax_probes() -> dict[str, Probe]:
    """Return the probes for the default JAX device, by name. Starts the backend.

    Returns:
        `broadcast-sum` (tensorflow#126812: a race between threads) and `matvec-sum` (jax#39103: wrong
        every time, on one thread too); on other platforms than CPU also `eager-add` (jax#40633) and
        `scatter` (jax#27796).
    """
    import jax
    import jax.numpy as jnp

    def compiled(function: Callable[[Any], Any], argument: np.ndarray[Any, Any]) -> Callable[[], float]:
        # Compiled ahead, so that a user's jax.disable_jit does not turn the probe into another program.
        placed = jax.device_put(argument)
        program = jax.jit(function).lower(placed).compile()
        return lambda: float(program(placed))

    def matvec_sum(rows: Any) -> Any:
        identity = jnp.eye(3, dtype=jnp.float32)
        return jax.vmap(lambda row: jnp.sum((identity @ row) ** 2))(rows)[-1]

    def scatter(values: Any) -> Any:
        places = jnp.zeros_like(values).at[jnp.arange(4)].set(values)
        return jnp.sum(places * jnp.asarray([1.0, 10.0, 100.0, 1000.0], jnp.float32))

    ones = np.ones((1024, 1), np.float32)
    rows = np.zeros((32769, 3), np.float32)
    rows[:, 0] = np.arange(32769)
    probes = {
        "broadcast-sum": Probe(
            compiled(lambda a: jnp.sum(jnp.broadcast_to(a, (2, 1024, 1024))), ones), 2.0**21
        ),
        "matvec-sum": Probe(compiled(matvec_sum, rows), 2.0**30, races=False),
    }
    if jax.default_backend() != "cpu":
        four = jax.device_put(np.ones(4, np.float32))
        values = np.asarray([1.0, 2.0, 0.0, 0.0], np.float32)
        probes["eager-add"] = Probe(lambda: float((four + 1.0)[3]), 2.0)
        probes["scatter"] = Probe(compiled(scatter, values), 21.0, races=False)
    return probes
