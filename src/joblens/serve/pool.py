"""Threads that read the store, each with an index of its own opened; one more keeps the index up to date."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from joblens.api.store import Store
from joblens.core.errors import sentence
from joblens.core.log_limiter import LogLimiter
from joblens.serve.errors import ApiError
from joblens.store.home import Home

_Answer = TypeVar("_Answer")
_MEMORY = "64MB"  # of DuckDB, per thread
_REFRESH_SECONDS = 2.0
_FRESH_SECONDS = 60.0  # the thread that refreshes is much earlier


class StorePool:
    def __init__(self, home: Home, threads: int, log: Callable[[str], None]) -> None:
        self._home, self._notes = home, LogLimiter(log)
        self._threads = ThreadPoolExecutor(threads, "store")
        self._local, self._opening = threading.local(), threading.Lock()
        self._stores: list[Store] = []
        self._progress = (0, 0)
        self._is_built, self._stop = threading.Event(), threading.Event()
        self._refresher = threading.Thread(target=self._refresh, name="index", daemon=True)

    def start(self) -> None:
        self._refresher.start()

    async def run(self, work: Callable[[Store], _Answer]) -> _Answer:
        """Run a function of the store in one of the threads. Raises ApiError while the index is built."""
        if not self._is_built.is_set():
            done, days = self._progress
            raise ApiError(503, f"the index of jobs is being built: {done} of {days} days are done", 2)
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(self._store()))

    async def run_plain(self, work: Callable[[], _Answer]) -> _Answer:
        """Run a function without the store."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _store(self) -> Store:
        found: Store | None = getattr(self._local, "store", None)
        if found is None:
            found = self._local.store = self._open(_FRESH_SECONDS)
        return found

    def _open(self, fresh_seconds: float = 0.0) -> Store:
        with self._opening:  # of several that open a new index, only one has to build it
            store = Store(
                self._home,
                self._note_progress,
                read_only=True,
                memory=_MEMORY,
                fresh_seconds=fresh_seconds,
            )
            self._stores.append(store)
            return store

    def _note_progress(self, done: int, days: int) -> None:
        self._progress = done, days

    def _refresh(self) -> None:
        """Index new records before someone asks for them. A failure is shown to readers."""
        store: Store | None = None
        while not self._stop.is_set():
            try:
                if store is None:
                    store = self._open()
                    store.prepare()
                store.jobs(limit=1)
                self._is_built.set()
            except Exception as error:  # readers get an answer, if an older one
                self._notes.say("index", f"cannot index the store: {sentence(error)}")
            self._stop.wait(_REFRESH_SECONDS)
        if store is not None:
            store.close()

    def close(self) -> None:
        self._stop.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._refresher.join()


class Turns:
    """Limits what one user can have in progress, so that others are answered meanwhile."""

    def __init__(self, at_once: int, most: int) -> None:
        self._at_once, self._most = at_once, most
        self._count: Counter[int] = Counter()
        self._turns: dict[int, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def of(self, uid: int) -> AsyncIterator[None]:
        """Wait for a turn. Raises ApiError if too many of the same user wait."""
        if self._count[uid] >= self._most:
            raise ApiError(
                429, f"you have {self._most} requests in progress, which is the most; retry later", 1
            )
        self._count[uid] += 1
        turn = self._turns.setdefault(uid, asyncio.Semaphore(self._at_once))
        try:
            async with turn:
                yield
        finally:
            self._count[uid] -= 1
            if not self._count[uid]:
                del self._count[uid]
                with suppress(KeyError):
                    del self._turns[uid]
