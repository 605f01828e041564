"""Durable file operations: what is written here survives a crash of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import blake3


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make a folder and everything below it durable."""
    for parent, _, names in os.walk(folder):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))


def append_line(path: Path, line: str) -> None:
    """Append one line durably; a torn line that a crash left at the end stays a line of its own."""
    is_new = not path.exists()
    with path.open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                stream.write(b"\n")
        stream.write(line.encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    if is_new:
        sync(path.parent)


def replace_text(path: Path, text: str) -> None:
    """Put `text` in the place of a file, durably; a reader sees the old or the new text."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def hash_file(path: Path) -> str:
    """Return the BLAKE3 digest of a file, 64 hexadecimal digits."""
    # Not by mmap: a bad sector would then kill the process instead of raising an error.
    with path.open("rb") as stream:
        hasher = blake3.blake3()
        while block := stream.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def hash_tree(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size in bytes and digest of each file below a folder, by relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): (path.stat().st_size, hash_file(path)) for path in files}


def differences(folder: Path, files: dict[str, tuple[int, str]]) -> list[str]:
    """Return what is wrong with a folder's files, one phrase each; files nobody recorded do not count."""
    wrong = []
    for name, (size, digest) in sorted(files.items()):
        path = folder / name
        if not path.is_file():
            wrong.append(f"{name} is missing")
        elif path.stat().st_size != size:
            wrong.append(f"{name} has {path.stat().st_size} bytes instead of {size}")
        elif hash_file(path) != digest:
            wrong.append(f"{name} does not have the bytes that were written")
    return wrong
