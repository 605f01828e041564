"""The cache of compiled programs: a folder for each user, machine and installation, kept by JAX.

What is in it is native code: only a folder that this user alone can use, made for this very machine, is used.
JAX writes an entry in place, so a process that is killed may leave half of one; those are removed here.
"""

from __future__ import annotations

import os
import platform
import socket
import stat
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from xptrain.provenance import machine
from xptrain.state.digest import digest_json

LIMIT: Final = 2 << 30
_ENTRY: Final = "-cache"
_HITS: Final = "/jax/compilation_cache/cache_hits"
_MISSES: Final = "/jax/compilation_cache/cache_misses"
_GPUS: Final = Path("/proc/driver/nvidia")

_ours: str | None = None
_events: Counter[str] = Counter()
_listening = False


@dataclass(frozen=True)
class CompileCache:
    """The cache that one run compiles with.

    Args:
        kept_by: "xptrain" for a folder of ours, "user" for one that was set already, "none" without one.
        folder: The folder, or None.
        before: Names of its entries as the run opened; only of a folder of ours.
        events: Hits and misses of this process as the run opened.
    """

    kept_by: str
    folder: str | None = None
    before: frozenset[str] = frozenset()
    events: tuple[int, int] = (0, 0)

    def as_json(self) -> dict[str, Any]:
        """Return what a manifest says of it."""
        return {"kept_by": self.kept_by, "folder": self.folder}

    def used(self) -> dict[str, Any] | None:
        """Return how often a folder of ours was hit and missed, and its new entries; None without one."""
        if self.kept_by != "xptrain" or self.folder is None:
            return None
        added = sorted(frozenset(_entries(Path(self.folder))) - self.before)
        hits, misses = _events[_HITS] - self.events[0], _events[_MISSES] - self.events[1]
        return {"folder": self.folder, "hits": hits, "misses": misses, "added": added}


def use(home: Path, say: Callable[[str], None]) -> CompileCache:
    """Point JAX to the cache of this user on this machine, unless the user has one, or wants none.

    Imports JAX, but starts no backend. What was compiled before is not in the cache.

    Args:
        home: The home of all runs, which also holds the caches.
        say: Tells the user why a folder is not used.

    Returns:
        The cache that is in use.
    """
    import jax

    folder = getattr(jax.config, "jax_compilation_cache_dir", None)
    if (folder and folder != _ours) or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return CompileCache("user", folder)
    if os.environ.get("XPTRAIN_COMPILE_CACHE") == "0" or not jax.config.jax_enable_compilation_cache:
        _point_to(None)
        return CompileCache("none")
    mine = home / "compiled" / fingerprint(os.environ)
    wrong = _make(mine)
    if wrong:
        say(f"compiled programs are not kept: {mine} {wrong}")
        _point_to(None)
        return CompileCache("none")
    _sweep(mine)
    _point_to(str(mine))
    _silence_false_alarms()
    return CompileCache("xptrain", str(mine), frozenset(_entries(mine)), (_events[_HITS], _events[_MISSES]))


def fingerprint(env: Mapping[str, str]) -> str:
    """Digest everything that makes a compiled program wrong, or another one, elsewhere.

    Args:
        env: Environment.
    """
    model, features = machine.cpu_model_and_features()
    return digest_json(
        {
            "cpu": [model, features],
            "arch": platform.machine(),
            "system": platform.system(),
            "threads": machine.xla_threads(machine.usable_cores(), env),
            "jax": [version("jax"), version("jaxlib")],
            "flags": {name: env.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")},
            "accelerator": [env.get("TPU_ACCELERATOR_TYPE", ""), *_gpus()],
            # With a limit of the user's, JAX keeps a time beside each entry, and fails where one lacks it.
            "limit": env.get("JAX_COMPILATION_CACHE_MAX_SIZE", ""),
            "user": os.geteuid(),
            "host": socket.gethostname(),
        }
    )[:32]


def _gpus() -> list[str]:
    """Return the driver and the kinds of NVIDIA GPUs, from the system: asking JAX would start it."""
    try:
        files = [_GPUS / "version", *sorted(_GPUS.glob("gpus/*/information"))]
        lines = [line for file in files if file.is_file() for line in file.read_text("utf-8").splitlines()]
    except OSError:
        return []
    return sorted({line for line in lines if line.startswith(("NVRM version", "Model:"))})


def _make(folder: Path) -> str:
    """Make the folder, readable for this user alone; return what is wrong with one that is there."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        return f"cannot be made ({error.strerror})"
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    if found.st_uid != os.geteuid():
        return "belongs to another user"
    if found.st_mode & 0o077:
        return f"can be used by others (mode {stat.S_IMODE(found.st_mode):o}, not 700); remove it"
    return ""


def _entries(folder: Path) -> dict[str, os.stat_result]:
    """Return the cache's entries by name."""
    try:
        with os.scandir(folder) as found:
            return {
                item.name.removesuffix(_ENTRY): item.stat() for item in found if item.name.endswith(_ENTRY)
            }
    except OSError:
        # Another process may remove an entry in between.
        return {}


def _sweep(folder: Path) -> None:
    """Remove entries that were written by half, and the oldest ones beyond the limit.

    JAX's own limit needs a package that it does not install, and locks the folder at every look.
    """
    marker, now = folder / "checked", time.time()
    checked = marker.stat().st_mtime if marker.is_file() else 0.0
    room = LIMIT
    entries = _entries(folder)
    for name in sorted(entries, key=lambda name: -max(entries[name].st_mtime, entries[name].st_atime)):
        file, size, written = folder / (name + _ENTRY), entries[name].st_size, entries[name].st_mtime
        room -= size
        try:
            # One that is a few seconds old may be half there because it is being written; it waits its turn.
            if room < 0 or (checked - 10 <= written < now - 10 and not _whole(file)):
                file.unlink()
                file.with_name(f"{name}-atime").unlink(missing_ok=True)
        except OSError:
            continue
    try:
        marker.touch()
    except OSError:
        return


def _whole(file: Path) -> bool:
    """Tell whether an entry's compressed stream has its end; True for a compression that is not zlib's."""
    with file.open("rb") as stream:
        head = stream.read(2)
        if head and head[0] != 0x78:
            return True
        stream.seek(0)
        inflate = zlib.decompressobj()
        try:
            while block := stream.read(1 << 20):
                inflate.decompress(block)
        except zlib.error:
            return False
        return inflate.eof


def _point_to(folder: str | None) -> None:
    """Make JAX use this folder for what it compiles from now on."""
    global _ours
    import jax

    if folder == _ours:
        return
    if _ours is not None:
        from jax.experimental.compilation_cache import compilation_cache

        # JAX looks at its setting once; this makes it look again.
        compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", folder)
    _ours = folder
    if folder is None:
        return
    _listen()
    # By default only what took a second to compile is kept; what the user chose stays.
    for name, default, chosen in (
        ("jax_persistent_cache_min_compile_time_secs", 1.0, 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", 0, -1),
    ):
        if getattr(jax.config, name) == default and name.upper() not in os.environ:
            jax.config.update(name, chosen)


def _listen() -> None:
    global _listening
    import jax

    if not _listening:
        _listening = True
        jax.monitoring.register_event_listener(_count)


def _count(event: str, **_: Any) -> None:
    if event in (_HITS, _MISSES):
        _events[event] += 1


def _silence_false_alarms() -> None:
    """Keep XLA from printing a page of CPU features, at error level, for each program that it loads.

    Where there is AVX-512, XLA compiles with two tuning hints and then misses them in the list of the CPU's
    features (openxla/xla#44565). A real mismatch cannot be: another machine has another folder.
    """
    if "avx512" not in machine.cpu_model_and_features()[1]:
        return
    # JAX itself sets 1, so that is no choice of the user's.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") != "1":
        return
    set_level = getattr(sys.modules.get("jaxlib.utils"), "absl_set_min_log_level", None)
    if set_level is not None:
        set_level(3)
