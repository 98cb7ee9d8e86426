"""Forks of this process that take one path at a time.

Unlike a pool of concurrent.futures they need neither threads nor /dev/shm, which a user may not have.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing import Pipe, get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from joblens.core.process import die_with

Work = Callable[[Path], Any]  # returns None if this process can take no other path


class Forks:
    """`start`, then `results`, then `end` in any case."""

    def __init__(self, make_work: Callable[[], Work], paths: Iterable[Path]) -> None:
        """`make_work` is called in each process."""
        self._make_work = make_work
        self._waiting = deque(paths)
        self._failed: list[Path] = []
        self._running: dict[Any, Path] = {}  # by the connection to the process
        self._processes: list[Any] = []
        self._is_done = False

    @property
    def left(self) -> list[Path]:
        """Paths without a result: no process was left to take them, or one has ended meanwhile."""
        return [*self._failed, *self._waiting]

    def start(self, count: int) -> None:
        """Start so many processes, or as many as are allowed."""
        context = get_context("fork")
        for _ in range(count):
            ours, its = Pipe()
            process = context.Process(target=_run, args=(its, os.getpid(), self._make_work), daemon=True)
            try:
                process.start()
            except OSError:
                return
            finally:
                its.close()
            self._processes.append(process)
            self._pass_on(ours)

    def _pass_on(self, connection: Any) -> None:
        path = self._waiting.popleft() if self._waiting else None
        if path is not None:
            self._running[connection] = path
        with suppress(OSError):  # it has ended, which is found when its result is read
            connection.send(path)

    def results(self) -> Iterator[Any]:
        while self._running:
            ready: list[Any] = wait(list(self._running))
            for connection in ready:
                path, found = self._running.pop(connection), None
                with suppress(EOFError, OSError):
                    found = connection.recv()  # of our own child
                if found is None:
                    self._failed.append(path)
                    connection.close()
                else:
                    yield found
                    self._pass_on(connection)
        self._is_done = True

    def end(self) -> None:
        """Wait for the processes. After an exception they do not end by themselves."""
        for process in self._processes:
            if not self._is_done:
                process.terminate()
            process.join()


def _run(connection: Any, parent: int, make_work: Callable[[], Work]) -> None:
    die_with(parent)()
    work = make_work()
    while (path := connection.recv()) is not None:
        found = work(path)
        connection.send(found)
        if found is None:
            break
