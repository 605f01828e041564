"""Which machine this is, and whether a process that was seen on it is still the same one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

_IS_LINUX: bool = sys.platform == "linux"


@dataclass(frozen=True)
class Machine:
    """What must be equal for a process id to mean the same process.

    Args:
        host: Name of the host.
        boot: Changes with each boot.
        space: The PID namespace: containers on one host may share the first two.
    """

    host: str
    boot: str
    space: str

    @classmethod
    def here(cls) -> Machine:
        """Return the machine that this process runs on."""
        return cls(socket.gethostname(), _boot(), _space())


def process_started(pid: int) -> float | None:
    """Return when a process of this machine started, or None when it has ended (a zombie has).

    Returns:
        Seconds since the boot on Linux, since the epoch elsewhere; to be compared for equality only.

    Example:
        >>> process_started(os.getpid()) == process_started(os.getpid())
        True
    """
    if _IS_LINUX:
        # psutil's create_time moves when the clock is set; the kernel's own ticks do not.
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZXx" else int(fields[19]) / os.sysconf("SC_CLK_TCK")
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None


def _boot() -> str:
    if _IS_LINUX:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    command = ["sysctl", "-n", "kern.bootsessionuuid"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return found or f"{psutil.boot_time():.0f}"


def _space() -> str:
    link = Path("/proc/self/ns/pid")
    return str(link.readlink()) if link.is_symlink() else ""
