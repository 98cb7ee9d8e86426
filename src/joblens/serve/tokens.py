"""Personal tokens: a user's own way to read from another machine. Only their digests are stored."""

from __future__ import annotations

import hmac
import secrets
import threading
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from joblens.core.errors import OutsideError, sentence
from joblens.core.files import write_whole
from joblens.serve.errors import ApiError

PREFIX = "jl"
LONGEST_NAME = 100
_MOST_OF_ONE, _MOST = 20, 10_000
_LONGEST = 200
_NOTHING = sha256(b"").hexdigest()


class Token(Struct, frozen=True):
    """What is known of a token, without the token itself."""

    id: str
    user: str
    uid: int
    name: str
    created: float
    expires: float


class Stored(Token, frozen=True):
    """A line of the file."""

    digest: str = ""

    def plain(self) -> Token:
        return Token(self.id, self.user, self.uid, self.name, self.created, self.expires)


class Tokens:
    """The tokens of all users, in one file that only the service can read. It is read again when it changes,
    such as when a backup is restored."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._version, self._tokens = _version(path), _load(path)

    def _refresh(self) -> None:
        """Raises OutsideError."""
        with self._lock:
            version = _version(self._path)
            if version != self._version:
                self._tokens = _load(self._path)
                self._version = version

    def check(self, text: str, now: float) -> Token | None:
        """Return the valid token that this is. An unknown one takes as long as a wrong one."""
        self._refresh()
        prefix, _, rest = text.partition("_")
        id, _, secret = rest.partition("_")
        found = self._tokens.get(id) if prefix == PREFIX and len(text) <= _LONGEST else None
        given = _digest(secret)
        right = hmac.compare_digest(given, found.digest if found else _NOTHING)
        return found.plain() if found and right and now < found.expires else None

    def create(self, user: str, uid: int, name: str, days: int, now: float) -> tuple[str, Token]:
        """Return the token, which is shown only this once. Raises ApiError."""
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        made = Stored(id, user, uid, name, now, now + days * 86_400, _digest(secret))
        self._refresh()
        with self._lock:
            kept = {it.id: it for it in self._tokens.values() if it.expires > now}
            if sum(it.uid == uid for it in kept.values()) >= _MOST_OF_ONE:
                raise ApiError(
                    409, f"you have {_MOST_OF_ONE} tokens; revoke one with joblens token revoke ID"
                )
            if len(kept) >= _MOST:
                raise ApiError(503, f"there are {_MOST} tokens, which is the most that the service keeps")
            self._save({**kept, id: made})
        return f"{PREFIX}_{id}_{secret}", made.plain()

    def of(self, uid: int | None, now: float) -> list[Token]:
        """Return the valid ones of a user, or of all, the newest first."""
        self._refresh()
        found = [it for it in self._tokens.values() if it.expires > now and uid in (None, it.uid)]
        return [it.plain() for it in sorted(found, key=lambda it: it.created, reverse=True)]

    def revoke(self, id: str, uid: int | None) -> None:
        """Revoke a token of this user, or of anybody. Raises ApiError, the same if it is another user's."""
        self._refresh()
        with self._lock:
            found = self._tokens.get(id)
            if found is None or uid not in (None, found.uid):
                raise ApiError(404, f"token {id:.60}: not found, or not yours")
            self._save({key: it for key, it in self._tokens.items() if key != id})

    def _save(self, tokens: dict[str, Stored]) -> None:
        try:
            write_whole(str(self._path), msgspec.json.encode(list(tokens.values())))
        except OSError as error:
            raise ApiError(503, f"the tokens cannot be saved: {sentence(error)}") from None
        self._version, self._tokens = _version(self._path), tokens


def _digest(secret: str) -> str:
    """A plain hash is enough: the secret has 256 random bits."""
    return sha256(secret.encode("utf-8", "replace")).hexdigest()


def _version(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _load(path: Path) -> dict[str, Stored]:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[Stored])
    except FileNotFoundError:
        return {}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise OutsideError(f"{path}: not a list of tokens: {error}; remove it to revoke all") from None
    return {it.id: it for it in found}
