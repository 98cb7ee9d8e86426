"""Connections to PostgreSQL, and its errors as sentences."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from joblens.core.errors import OutsideError
from joblens.store.database import Database

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

SCHEMA = "joblens"
_CONNECT_SECONDS = 5
_ATTEMPTS, _PAUSE = 4, 0.25  # seconds, doubled each time: a server that restarts, or has no free connection
# Without indexes of its own choice: times are seconds since 1970, and all that prints a time prints UTC.
_OPTIONS = f"-c search_path={SCHEMA} -c timezone=UTC -c client_encoding=UTF8 -c extra_float_digits=3"


class UnavailableError(OutsideError):
    """The database cannot be reached, or does not accept changes now. Records wait as files."""


class NotReadyError(UnavailableError):
    """It has no tables of joblens, or those of another version."""


def connect(database: Database, attempts: int = _ATTEMPTS) -> Connection:
    """Each statement is a transaction. Raises OutsideError."""
    psycopg = load_driver()
    try:
        given = psycopg.conninfo.conninfo_to_dict(database.url)
    except psycopg.Error:  # its message contains the URL
        raise OutsideError(f"{database}: this is no URL of a database that libpq understands") from None
    settings = {"connect_timeout": _CONNECT_SECONDS, "application_name": "joblens", **given}
    settings["options"] = f"{_OPTIONS} {given.get('options', '')}".strip()
    for attempt in range(attempts):
        try:
            found: Connection = psycopg.connect(**settings, autocommit=True, prepare_threshold=None)
            return found
        except psycopg.OperationalError as error:
            if attempt + 1 == attempts:
                raise UnavailableError(_describe(database, error)) from None
        time.sleep(_PAUSE * 2**attempt)
    raise AssertionError


def load_driver() -> Any:
    """Raises OutsideError: it is an optional package, and takes a tenth of a second to load."""
    try:
        import psycopg
    except ImportError as error:
        raise OutsideError(
            f"PostgreSQL needs the package psycopg ({error}); install it: pip install 'joblens[postgresql]'"
        ) from None
    return psycopg


@contextmanager
def sentences(database: Database) -> Iterator[None]:
    """Turn errors of the driver into sentences. Raises OutsideError."""
    psycopg = load_driver()
    errors = psycopg.errors
    try:
        yield
    except (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName):
        raise NotReadyError(
            f"{database} has no tables of this joblens; run `joblens db init` or `joblens db upgrade`"
        ) from None
    except (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction) as error:
        raise UnavailableError(f"{database} may not be changed: {_first_line(error)}") from None
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise UnavailableError(_describe(database, error)) from None
    except psycopg.Error as error:
        raise OutsideError(f"{database}: {_first_line(error)}") from None


def _describe(database: Database, error: Exception) -> str:
    return f"{database} does not answer: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    """What the server or libpq says, without hints. Neither contains a password."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[0] if lines else type(error).__name__
    return said.partition("failed: ")[2].removeprefix("FATAL:").removeprefix("ERROR:").strip() or said
