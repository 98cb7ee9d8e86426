"""The location of the store, and the type of its file system."""

from __future__ import annotations

import os
from pathlib import Path

from joblens.core.errors import OutsideError
from joblens.core.named_tuple import NamedTuple
from joblens.store.database import Database, find_database
from joblens.store.location import (
    INCOMING,
    WAITING,
    digest,
    find_filesystem,
    is_shared,
    locate,
    make_folders,
)


class Home(NamedTuple):
    path: Path
    filesystem: str
    shared: bool
    index_file: Path | None = None  # the catalog, where it is not at its usual place
    database: Database | None = None  # that has the records, where they are not files

    @property
    def incoming(self) -> Path:
        return self.path / INCOMING

    @property
    def waiting(self) -> Path:
        """Jobs with a record whose samples are not in the lake yet."""
        return self.path / WAITING

    @property
    def lake(self) -> Path:
        return self.path / "lake"

    @property
    def records(self) -> Path:
        return self.path / "records"

    @property
    def models(self) -> Path:
        """Reference models."""
        return self.path / "models"

    @property
    def undelivered(self) -> Path:
        """Records that wait for the database, as files."""
        return self.path / "undelivered"

    @property
    def submitted(self) -> Path:
        """A folder for each job that archives were stored of, with a file for each of them."""
        return self.path / "submitted"

    @property
    def damaged(self) -> Path:
        return self.path / "damaged"

    @property
    def catalog(self) -> Path:
        """The index. On a shared file system each machine has its own, on a local file system."""
        if self.index_file is not None:
            return self.index_file
        if not self.shared:
            return self.path / "catalog.sqlite"
        name = digest(os.fsencode(self.path))[:16]
        return local_folder() / f"catalog-{name}.sqlite"

    def describe(self) -> str:
        if self.database is not None:
            return f"The store {self.path} has the samples; the job records are in {self.database}."
        if not self.shared:
            return (
                f"The store {self.path} is on {self.filesystem}, a local file system. "
                "The catalog is beside the data."
            )
        return (
            f"The store {self.path} is on {self.filesystem}, which several machines may share. "
            "All of them can write to it at the same time; nothing relies on its locks. "
            f"Each machine has its own catalog, built from the data: {_catalog_path(self)}."
        )


def _catalog_path(home: Home) -> str:
    try:
        return str(home.catalog)
    except OutsideError as error:
        return f"in memory only, because {error}"


def find_home(chosen: str | os.PathLike[str] | None = None, mounts: str | None = None) -> Home:
    """Return the home at a path, by default JOBLENS_HOME or the user's data folder, and its database.

    Raises OutsideError and ConfigError.
    """
    path = locate(chosen)
    kind = find_filesystem(path, mounts)
    return Home(Path(path), kind, is_shared(kind), None, find_database(os.environ))


def make_home(home: Home) -> Home:
    """Create its folders, readable by the owner only."""
    make_folders(str(home.path))
    return home


def local_folder() -> Path:
    """Return a local folder that only this user can write to."""
    import tempfile

    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = runtime.startswith("/") and os.access(runtime, os.W_OK)
    folder = Path(runtime if usable else tempfile.gettempdir()) / f"joblens-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise OutsideError(f"cannot create {folder}: {error.strerror}") from None
    # A symbolic link has mode 0777, so one that another user created is rejected too.
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise OutsideError(f"{folder} is accessible to other users, and is not used")
    return folder
