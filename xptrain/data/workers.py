"""Loads items of an indexed dataset: in the loop itself, in threads, or in processes; always in order."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import count
from typing import Any

from xptrain.data import draws
from xptrain.data.changes import Changes
from xptrain.data.draws import Held, Names

# (index, names of its random numbers)
Item = tuple[int, Names]
_WATCH_S = 1.0
_mine: Any = None


class Loader:
    """Loads items of one dataset.

    Args:
        dataset: Has `__getitem__`, and may have `workers`, `use_multiprocessing` and `max_queue_size`.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.held = Held(dataset)
        workers = int(getattr(dataset, "workers", 1) or 0)
        self._in_processes = workers > 0 and bool(getattr(dataset, "use_multiprocessing", False))
        self._workers = workers if workers > 1 or self._in_processes else 0
        self._ahead = max(self._workers, int(getattr(dataset, "max_queue_size", 10) or 1))
        self.is_serial = not self._workers
        # What was seen while loading and makes it depend on more than the index.
        self.seen: dict[str, None] = {}

    def load(self, items: Sequence[Item] | Iterator[Item]) -> Iterator[Any]:
        """Yield the items in order."""
        # A hook may have made new generators.
        self.held = Held(self._dataset)
        if not self._workers:
            for index, names in items:
                yield self._here(index, names)
            return
        if self._in_processes:
            yield from self._ordered(
                ProcessPoolExecutor(self._workers, initializer=_begin, initargs=(self._dataset, os.getpid())),
                _in_process,
                iter(items),
            )
        else:
            yield from self._ordered(
                ThreadPoolExecutor(self._workers, thread_name_prefix="xptrain-loader"),
                self._in_thread,
                iter(items),
            )

    def _ordered(self, pool: Executor, load: Any, items: Iterator[Item]) -> Iterator[Any]:
        waiting: deque[Future[Any]] = deque()
        try:
            while True:
                while len(waiting) < self._ahead and (item := next(items, None)) is not None:
                    index, names = item
                    waiting.append(pool.submit(load, index, names))
                if not waiting:
                    return
                value, seen = waiting.popleft().result()
                self.seen.update(dict.fromkeys(seen))
                yield value
        finally:
            for future in waiting:
                future.cancel()
            pool.shutdown(wait=True, cancel_futures=True)

    def _here(self, index: int, names: Names) -> Any:
        with self.held.drawing(names):
            return self._dataset[index]

    def _in_thread(self, index: int, names: Names) -> tuple[Any, list[str]]:
        # Threads share the global generators: what they draw depends on who comes first.
        before = draws.globals_now(), self.held.now()
        value = self._dataset[index]
        after = draws.globals_now(), self.held.now()
        return value, ["random numbers drawn by loader threads"] if before != after else []


def _begin(dataset: Any, parent: int) -> None:
    """Begin a loader process: it keeps its own dataset, and does not outlive the trainer."""
    global _mine
    held = Held(dataset)
    _mine = dataset, held, Changes(dataset, held.has), count(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _in_process(index: int, names: Names) -> tuple[Any, list[str]]:
    dataset, held, changes, counter = _mine
    draws.seed_globals(names)
    held.seed(names)
    held.seed_keras(names)
    value = dataset[index]
    number = next(counter)
    # The parent does not see what changes here. What changes at all does so soon.
    return value, changes.seen() if number & (number - 1) == 0 else []
