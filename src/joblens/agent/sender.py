"""The thread that sends batches from the spool to the hub, oldest first, and retries until accepted."""

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
_SLOW_WAIT = 60.0  # where an administrator has to act first
_LONGEST_RETRY_AFTER = 600.0
_REFUSALS = 3  # in a row, after which the server may not be a hub
_MOST_WORDS = 400
_UNSIGNED = "not signed with this node's secret: the hub must be updated, or the server is not a hub"


class Target:
    """The hub's address and the credentials for it."""

    def __init__(self, settings: PushSettings, cluster: str, node: str) -> None:
        self.cluster, self.node = cluster, node
        self.url = split_url(settings.url)
        if settings.ca_file:
            with open(settings.ca_file, "rb"):
                pass  # report a missing file now
        self.proof = Proof(settings, cluster, node)
        self.client = Client(self.url, settings.timeout, settings.ca_file)
        self.address = settings.url.rstrip("/")


class _ProofError(JoblensError):
    """The credentials cannot be read or made."""


class Progress(NamedTuple):
    """Counts of batches and the last error."""

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
            except Exception as error:  # the thread must survive any defect
                wait = self._has_failed(f"{type(error).__name__}: {sentence(error)}")
            if wait and self._closing:
                break
            self._hurry.wait(wait)
            self._hurry.clear()
        target.client.close()

    def change(self, target: Target) -> None:
        """Send to this target from the next batch on."""
        self._target = target
        self._hurry.set()

    def close(self, seconds: float) -> None:
        """Send for at most this long. The rest stays in the spool."""
        self._closing = True
        self.spool.close()
        self._hurry.set()
        self.join(seconds)
        if self.is_alive():
            self.log = lambda message: None
            self._target.client.abort()
            self.join(0.2)

    def _try(self, item: Item, target: Target) -> float:
        """Try once; return the seconds until the next attempt."""
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
            return self._has_failed(f"{target.address}: {sentence(error)}")
        handle = self._handle_answer if proved else self._handle_unsigned
        return handle(answer, target, item, message)

    def _headers(self, target: Target, boot: str, sequence: int, message: bytes) -> Dict[str, str]:
        headers = {"User-Agent": f"joblens/{__version__}", "Content-Type": "application/x-joblens-batch"}
        try:
            return {**headers, **target.proof.sign(f"POST {PATH}", boot, sequence, message)}
        except (OSError, JoblensError) as error:
            raise _ProofError(sentence(error)) from None

    def _handle_answer(self, answer: Answer, target: Target, item: Item, message: bytes) -> float:
        """Handle a signed answer. Only the hub can have a batch removed, set apart or renumbered."""
        reply = f"{target.address} answers {answer.status}{first_line(answer)}"
        target.proof.was_taken()
        if answer.status == 200:
            return self._is_acknowledged(answer, item, message, target)
        if _is_about_the_batch(answer) or (answer.status == 403 and _is_of_another(message, target)):
            return self._is_refused(reply, item, message)
        return self._try_later(answer, reply, _retry_after(answer))

    def _handle_unsigned(self, answer: Answer, target: Target, *_: object) -> float:
        """Handle an answer of any server at that address: a hub does not sign for nodes it does not know."""
        if answer.status == 401 and target.proof.was_refused():
            return 0.0
        if answer.status == 429 and target.proof.was_put_off():
            return 0.0
        if answer.status == 200 or REFUSAL.lower() in answer.headers:
            return self._has_failed(f"{target.address} answers {answer.status}, {_UNSIGNED}")
        reply = f"{target.address} answers {answer.status}{first_line(answer)}"
        retry = _retry_after(answer)
        return self._try_later(answer, reply, None if retry is None else min(retry, _LONGEST_WAIT))

    def _try_later(self, answer: Answer, reply: str, retry: Optional[float]) -> float:
        if answer.status in (408, 425, 429) or answer.status >= 500:
            return self._has_failed(reply, retry)
        return self._has_failed(reply, _SLOW_WAIT)

    def _is_acknowledged(self, answer: Answer, item: Item, message: bytes, target: Target) -> float:
        if not acknowledges(answer.body, item.sequence):
            return self._has_failed(f"{target.address} answers without an acknowledgement: is it a hub?")
        if self.spool.renumber(item, highest_of(answer.body)):
            return self._has_lost(item, PUT_BACK)
        before = self.progress
        self.progress = before._replace(
            sent=before.sent + 1, bytes=before.bytes + len(message), acknowledged_ns=time.time_ns(), error=""
        )
        if before.error:
            self.log(f"push: {target.address} accepts batches again; {self.spool.batches - 1} unsent")
        self._in_a_row = self._refusals = 0
        # Last, so that when the spool is empty the counters include all that was in it.
        self.spool.acknowledge(item)
        return 0.0

    def _is_refused(self, reply: str, item: Item, message: bytes) -> float:
        """Back off if several in a row are refused: each of them is lost to the hub."""
        self.spool.refuse(item, message)
        self.log(f"push: {reply}; batch {item.sequence} moved to {self.spool.folder}/refused")
        self._refusals += 1
        return self._back_off(self._refusals - _REFUSALS) if self._refusals >= _REFUSALS else 0.0

    def _has_lost(self, item: Item, why: str) -> float:
        self.spool.lose(item, why)
        self.log(f"push: batch {item.sequence}: {why}; the gap is recorded")
        return 0.0

    def _has_failed(self, reason: str, wait: Optional[float] = None) -> float:
        if reason != self.progress.error:
            self.log(f"push: {reason}; {self.spool.batches} batches unsent")
        self.progress = self.progress._replace(failures=self.progress.failures + 1, error=reason)
        self._in_a_row += 1
        if wait is not None:
            return wait * _between(1.0, 1.2)
        return self._back_off(self._in_a_row - 1)

    @staticmethod
    def _back_off(turn: int) -> float:
        return min(_FIRST_WAIT * 2.0 ** min(turn, 20), _LONGEST_WAIT) * _between(0.5, 1.0)


def acknowledges(body: bytes, sequence: int) -> bool:
    """Whether it is `{"acknowledged": [first, last]}` around the sequence: any server may answer 200."""
    import json

    try:
        found: Any = json.loads(body)
        first, last = found["acknowledged"]
        return type(first) is type(last) is int and bool(first <= sequence <= last)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def highest_of(body: bytes) -> int:
    """Return the highest number that the hub has of that boot, sent for a batch that it already had."""
    import json

    if b'"highest"' not in body:
        return 0
    highest = json.loads(body).get("highest")
    return highest if type(highest) is int else 0


def first_line(answer: Answer) -> str:
    """Return the first line of the body, made safe for a log."""
    line = answer.body.decode("utf-8", "replace").strip().partition("\n")[0][:_MOST_WORDS]
    clean = "".join(letter if letter.isprintable() else "?" for letter in line)
    return f": {clean}" if clean else ""


def _retry_after(answer: Answer) -> Optional[float]:
    text = answer.headers.get("retry-after", "")
    if not re.fullmatch(r"[0-9]{1,9}", text):
        return None
    return min(float(text), _LONGEST_RETRY_AFTER) or None


def _is_about_the_batch(answer: Answer) -> bool:
    """Whether a hub refuses the batch. A proxy that answers 400 or 413 has not parsed it."""
    return answer.status in (400, 413) and REFUSAL.lower() in answer.headers


def _is_of_another(message: bytes, target: Target) -> bool:
    """Whether it was made under another name of this node, for which the credentials no longer hold."""
    head = read_header(message)
    return (head.get("cluster"), head.get("node")) != (target.cluster, target.node)


def _between(low: float, high: float) -> float:
    """Return a random factor, so that nodes that lose the hub together do not return together."""
    return low + (high - low) * int.from_bytes(os.urandom(2), "big") / 65535
