"""Changes of tags and annotations of jobs that have no record yet.

They are kept in `edits/JOB@CLUSTER.json` and made in each record of the run that is saved, so that a record
that is computed again has them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import field

from joblens.core.errors import MalformedError
from joblens.core.files import make_folder, write_whole
from joblens.core.json_file import load_json, render_json
from joblens.record.fields import Moment, Part, read
from joblens.store.location import safe_name

if TYPE_CHECKING:
    from joblens.record.report import JobRecord

JUDGED = "judged"  # the annotation that follows from the judgements of a record, see joblens.jobs.judge
_FOLDER = "edits"
_LARGEST = 1 << 26  # bytes
_SAME_RUN = 60.0  # seconds: who reports a start may round it, or see it late


class Change(Part, kw_only=True):
    """Of the tags or the annotations of a job."""

    add: dict[str, str] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)
    in_place: bool = False  # of all that the job has

    def of(self, before: Mapping[str, str]) -> dict[str, str]:
        now = {**({} if self.in_place else before), **self.add}
        return {name: value for name, value in now.items() if name not in self.remove}

    def then(self, later: Change) -> Change:
        """Return one change that does what both do."""
        if later.in_place:
            return later
        add = {name: text for name, text in {**self.add, **later.add}.items() if name not in later.remove}
        remove = {*(it for it in self.remove if it not in later.add), *later.remove}
        return Change(add=add, remove=sorted(remove), in_place=self.in_place)


def apply_change(before: Mapping[str, str], change: Change, part: str) -> dict[str, str]:
    """Return the tags or annotations that a job has then. What its models have judged stays."""
    now = change.of(before)
    if part == "annotations":
        now.pop(JUDGED, None)
        now.update({name: text for name, text in before.items() if name == JUDGED})
    return now


class Edits(Part, kw_only=True):
    """All changes of one run of a job."""

    cluster: str
    id: str
    start: Moment
    tags: Change = field(default_factory=Change)
    annotations: Change = field(default_factory=Change)

    def is_of(self, cluster: str, id: str, start: float) -> bool:
        return (self.cluster, self.id) == (cluster, id) and abs(self.start - start) <= _SAME_RUN


def add_edit(home: Path, run: tuple[str, str, float], part: str, change: Change) -> Edits:
    """Add a change of `tags` or `annotations` of a run: cluster, id and start. Return all of them.

    Those of an earlier run with the same id are replaced. Raises MalformedError and OSError.
    """
    path = _path(home, run[0], run[1])
    found = load_edits(path)
    if found is None or not found.is_of(*run):
        found = Edits(cluster=run[0], id=run[1], start=run[2])
    found = found.replace(**{part: getattr(found, part).then(change)})
    make_folder(path.parent)
    write_whole(str(path), render_json(found.to_dict()))
    return found


def find_edits(home: Path, run: tuple[str, str, float]) -> Edits | None:
    """Return None if there are none, or if they are damaged."""
    with suppress(MalformedError, OSError):
        found = load_edits(_path(home, run[0], run[1]))
        return found if found is not None and found.is_of(*run) else None
    return None


def apply_edits(home: Path, record: JobRecord) -> None:
    """Change the tags and annotations of a record that is about to be saved."""
    job = record.job
    found = find_edits(home, (job.cluster, job.id, job.start))
    if found is not None:
        for part in ("tags", "annotations"):
            before = getattr(job, part) or {}
            now = apply_change(before, getattr(found, part), part)
            if now != before:
                setattr(job, part, now)


def remove_edits(home: Path, runs: Iterable[tuple[str, str, float]]) -> None:
    for run in runs:
        if find_edits(home, run) is not None:
            _path(home, run[0], run[1]).unlink(missing_ok=True)


def load_edits(path: Path) -> Edits | None:
    """Raises MalformedError and OSError."""
    try:
        return read(load_json(str(path), _LARGEST), Edits)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(path), f"damaged: {error!s:.200}") from None


def _path(home: Path, cluster: str, id: str) -> Path:
    return home / _FOLDER / f"{safe_name(f'{id}@{cluster}')}.json"
