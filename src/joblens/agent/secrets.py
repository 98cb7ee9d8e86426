"""Tokens in files, and credentials that munge makes: what proves to others who we are."""

from __future__ import annotations

import os
import time
from typing import Optional, Tuple

from joblens.config import PushSettings
from joblens.errors import ConfigError, OutsideError

_MUNGE_SECONDS = 5.0
# A credential is good for five minutes where munged's own setting is left alone. To make one, and to have it
# checked, takes a process on either side.
_CREDENTIAL_SECONDS = 120.0


def read_token(path: str) -> Optional[bytes]:
    if not path:
        return None
    with open(path, "rb") as file:
        token = file.read(4096).strip()
    if not token:
        raise ConfigError("the token file is empty", path)
    if os.stat(path).st_mode & 0o077:
        raise ConfigError("others can read the token file; chmod 600 it", path)
    return token


class Proof:
    """The value of `Authorization`, for the hub that batches go to. Asked by one thread only."""

    def __init__(self, settings: PushSettings, cluster: str, node: str) -> None:
        self._settings, self._payload = settings, f"{cluster}\0{node}".encode()
        self._token = ""
        self._stamp: Optional[Tuple[int, ...]] = None
        self._credential = ""
        self._made = 0.0
        if settings.token_file:
            self._read_token()  # so that a wrong one is told at once

    def make(self) -> str:
        """Raises OSError or JoblensError. The token's file is read again when it has changed."""
        if self._settings.munge:
            if not self._credential or time.monotonic() - self._made > _CREDENTIAL_SECONDS:
                self._made, self._credential = time.monotonic(), self._run_munge()
            return "Munge " + self._credential
        if not self._settings.token_file:
            return ""
        found = os.stat(self._settings.token_file)
        if (found.st_ino, found.st_mtime_ns, found.st_size) != self._stamp:
            self._read_token()
        return "Bearer " + self._token

    def was_refused(self) -> bool:
        """Whether another one may do better: a hub that was started anew cannot check an old credential."""
        old, self._credential = self._credential, ""
        return bool(old) and time.monotonic() - self._made > 1.0

    def _read_token(self) -> None:
        path = self._settings.token_file
        found = os.stat(path)
        token = (read_token(path) or b"").decode("latin-1")
        if not token.isprintable():
            raise ConfigError("the token has letters that cannot be sent", path)
        self._token, self._stamp = token, (found.st_ino, found.st_mtime_ns, found.st_size)

    def _run_munge(self) -> str:
        import subprocess

        command = ["munge"]
        if self._settings.munge_socket:
            command.append(f"--socket={self._settings.munge_socket}")
        try:
            # By its input: an argument cannot have the NUL between the two names.
            done = subprocess.run(
                command, input=self._payload, capture_output=True, timeout=_MUNGE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise OutsideError(f"munge did not answer within {_MUNGE_SECONDS:g} s") from None
        if done.returncode:
            first = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
            raise OutsideError(f"munge made no credential: {first}" if first else "munge made no credential")
        return done.stdout.decode("ascii", "replace").strip()
