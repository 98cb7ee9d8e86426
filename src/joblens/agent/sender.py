"""The thread that brings batches from the spool to the hub, from old to new, for as long as it takes."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from typing import Any, Dict, NamedTuple, Optional

from joblens import __version__
from joblens.agent.sampler import Log
from joblens.agent.spool import PUT_BACK, Item, Spool
from joblens.core.config import PushSettings, split_url
from joblens.core.errors import JoblensError, MalformedError, ServerError, sentence
from joblens.wire.credentials import Proof
from joblens.wire.frame import read_header
from joblens.wire.http_client import Answer, Client
from joblens.wire.mac import REFUSAL

PATH = "/v1/batch"
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_SLOW_WAIT = 60.0  # where a person has to do something first
_LONGEST_RETRY_AFTER = 600.0
_REFUSALS = 3  # in a row, after which it may be that what answers is no hub
_MOST_WORDS = 400
_UNSIGNED = "not signed with this node's secret: it is an older hub, which must be updated, or no hub"


class Target:
    """Whom to send to, and how to say who sends."""

    def __init__(self, settings: PushSettings, cluster: str, node: str) -> None:
        self.cluster, self.node = cluster, node
        self.url = split_url(settings.url)
        if settings.ca_file:
            with open(settings.ca_file, "rb"):
                pass  # so that a wrong one is told at once
        self.proof = Proof(settings, cluster, node)
        self.client = Client(self.url, settings.timeout, settings.ca_file)
        self.words = settings.url.rstrip("/")


class _ProofError(JoblensError):
    """We cannot say who we are."""


class Progress(NamedTuple):
    """What has become of the batches so far."""

    sent: int = 0
    bytes: int = 0
    failures: int = 0
    acknowledged_ns: int = 0
    error: str = ""


class Sender(threading.Thread):
    def __init__(self, spool: Spool, target: Target, log: Log) -> None:
        super().__init__(name="push", daemon=True)
        self.spool, self.log = spool, log
        self.progress = Progress()
        self._target = target
        self._hurry = threading.Event()
        self._closing = False
        self._in_a_row = self._refusals = 0

    def run(self) -> None:
        target = self._target
        while True:
            item = self.spool.take()
            if item is None:
                break
            if target is not self._target:
                target.client.close()
                target, self._in_a_row = self._target, 0
            try:
                wait = self._try(item, target)
            except Exception as error:  # the thread must not end of what nobody has thought of
                wait = self._has_failed(f"{type(error).__name__}: {sentence(error)}")
            if wait and self._closing:
                break
            self._hurry.wait(wait)
            self._hurry.clear()
        target.client.close()

    def change(self, target: Target) -> None:
        """From the next batch on."""
        self._target = target
        self._hurry.set()

    def close(self, seconds: float) -> None:
        """Sends what there is for at most so long. What is left then stays in the spool."""
        self._closing = True
        self.spool.close()
        self._hurry.set()
        self.join(seconds)
        if self.is_alive():
            self.log = _say_nothing
            self._target.client.abort()
            self.join(0.2)

    def _try(self, item: Item, target: Target) -> float:
        """Seconds until the next try makes sense."""
        try:
            message = self.spool.read(item)
            boot = str(read_header(message).get("boot"))
        except (FileNotFoundError, MalformedError):
            return self._has_lost(item, "lost from the spool")
        except OSError as error:
            if error.errno == errno.EIO:
                return self._has_lost(item, "the disk cannot read it")
            return self._has_failed(sentence(error))
        try:
            target.proof.prepare(target.client)
            headers = self._headers(target, boot, item.sequence, message)
            answer = target.client.post(PATH, headers, message)
            proved = target.proof.has_answered(headers, answer)
        except _ProofError as error:
            return self._has_failed(sentence(error), _SLOW_WAIT)
        except (OSError, ServerError) as error:
            return self._has_failed(f"{target.words}: {sentence(error)}")
        return self._heed(answer, item, message, target) if proved else self._disbelieve(answer, target)

    def _headers(self, target: Target, boot: str, sequence: int, message: bytes) -> Dict[str, str]:
        headers = {"User-Agent": f"joblens/{__version__}", "Content-Type": "application/x-joblens-batch"}
        try:
            return {**headers, **target.proof.sign(f"POST {PATH}", boot, sequence, message)}
        except (OSError, JoblensError) as error:
            raise _ProofError(sentence(error)) from None

    def _heed(self, answer: Answer, item: Item, message: bytes, target: Target) -> float:
        """Of the hub's own answer: nobody else can have a batch removed, put aside or numbered anew."""
        said = f"{target.words} answers {answer.status}{first_line(answer)}"
        target.proof.was_taken()
        if answer.status == 200:
            return self._is_acknowledged(answer, item, message, target)
        if _is_about_the_batch(answer) or (answer.status == 403 and _is_of_another(message, target)):
            return self._is_refused(said, item, message)
        return self._try_later(answer, said, _retry_after(answer))

    def _disbelieve(self, answer: Answer, target: Target) -> float:
        """Of whoever is at that address. The hub does not sign what it says to whom it does not know."""
        if answer.status == 401 and target.proof.was_refused():
            return 0.0
        if answer.status == 429 and target.proof.was_put_off():
            return 0.0
        if answer.status == 200 or REFUSAL.lower() in answer.headers:
            return self._has_failed(f"{target.words} answers {answer.status}, {_UNSIGNED}")
        said = f"{target.words} answers {answer.status}{first_line(answer)}"
        retry = _retry_after(answer)
        return self._try_later(answer, said, None if retry is None else min(retry, _LONGEST_WAIT))

    def _try_later(self, answer: Answer, said: str, retry: Optional[float]) -> float:
        if answer.status in (408, 425, 429) or answer.status >= 500:
            return self._has_failed(said, retry)
        return self._has_failed(said, _SLOW_WAIT)

    def _is_acknowledged(self, answer: Answer, item: Item, message: bytes, target: Target) -> float:
        if not acknowledges(answer.body, item.sequence):
            return self._has_failed(f"{target.words} answers, but does not acknowledge: is it a hub?")
        if self.spool.begin_anew(item, highest_of(answer.body)):
            return self._has_lost(item, PUT_BACK)
        before = self.progress
        self.progress = before._replace(
            sent=before.sent + 1, bytes=before.bytes + len(message), acknowledged_ns=time.time_ns(), error=""
        )
        if before.error:
            self.log(f"push: {target.words} takes batches again; {self.spool.batches - 1} wait")
        self._in_a_row = self._refusals = 0
        # Last, so that who sees an empty spool sees what has become of all that was in it.
        self.spool.acknowledge(item)
        return 0.0

    def _is_refused(self, said: str, item: Item, message: bytes) -> float:
        """Should all be refused, then slowly: each is one that no hub will get."""
        self.spool.refuse(item, message)
        self.log(f"push: {said}; batch {item.sequence} is put aside in {self.spool.folder}/refused")
        self._refusals += 1
        return self._back_off(self._refusals - _REFUSALS) if self._refusals >= _REFUSALS else 0.0

    def _has_lost(self, item: Item, why: str) -> float:
        self.spool.lose(item, why)
        self.log(f"push: batch {item.sequence}: {why}; the gap is recorded")
        return 0.0

    def _has_failed(self, words: str, wait: Optional[float] = None) -> float:
        if words != self.progress.error:
            self.log(f"push: {words}; {self.spool.batches} batches wait")
        self.progress = self.progress._replace(failures=self.progress.failures + 1, error=words)
        self._in_a_row += 1
        if wait is not None:
            return wait * _between(1.0, 1.2)
        return self._back_off(self._in_a_row - 1)

    @staticmethod
    def _back_off(turn: int) -> float:
        return min(_FIRST_WAIT * 2.0 ** min(turn, 20), _LONGEST_WAIT) * _between(0.5, 1.0)


def acknowledges(body: bytes, sequence: int) -> bool:
    """Not every page with 200 is a hub's: `{"acknowledged": [first, last]}`."""
    import json

    try:
        found: Any = json.loads(body)
        first, last = found["acknowledged"]
        return type(first) is type(last) is int and bool(first <= sequence <= last)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def highest_of(body: bytes) -> int:
    """The highest number that the hub has of that boot, which it says of a batch that it had before."""
    import json

    if b'"highest"' not in body:
        return 0
    highest = json.loads(body).get("highest")
    return highest if type(highest) is int else 0


def first_line(answer: Answer) -> str:
    """The first line of what a server has to say, harmless in a log."""
    line = answer.body.decode("utf-8", "replace").strip().partition("\n")[0][:_MOST_WORDS]
    clean = "".join(letter if letter.isprintable() else "?" for letter in line)
    return f": {clean}" if clean else ""


def _retry_after(answer: Answer) -> Optional[float]:
    text = answer.headers.get("retry-after", "")
    if not re.fullmatch(r"[0-9]{1,9}", text):
        return None
    return min(float(text), _LONGEST_RETRY_AFTER) or None


def _is_about_the_batch(answer: Answer) -> bool:
    """A hub says so. A proxy, or another server, that answers 400 or 413 does not know what a batch is."""
    return answer.status in (400, 413) and REFUSAL.lower() in answer.headers


def _is_of_another(message: bytes, target: Target) -> bool:
    """Made when this node had another name, as which it may not send any more."""
    head = read_header(message)
    return (head.get("cluster"), head.get("node")) != (target.cluster, target.node)


def _between(low: float, high: float) -> float:
    """Many nodes lose a hub at the same moment, and should not come back at the same one."""
    return low + (high - low) * int.from_bytes(os.urandom(2), "big") / 65535


def _say_nothing(message: str) -> None:
    return
