"""New jobs are judged by the reference models that apply to them; the result is part of their record.

The annotation `judged` has it in one word, so that listings can select by it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from joblens.core.errors import OutsideError, sentence
from joblens.record.report import JobRecord
from joblens.store.edits import JUDGED
from joblens.store.home import Home

if TYPE_CHECKING:
    from joblens.record.model import ReferenceModel
    from joblens.store.memory_reader import SamplesReader
    from joblens.store.reader import LakeReader, Span

USUAL, UNUSUAL = "usual", "unusual"


class Judge:
    """Reads the models once, when the first job comes."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._models: list[ReferenceModel] | None = None

    def judge(self, record: JobRecord, reader: LakeReader | SamplesReader) -> None:
        """Add the judgements to the record. What prevents one is a problem of the record, and no error."""
        if record.job.annotations:  # of an archive, or of an earlier record
            record.job.annotations.pop(JUDGED, None)
        if self._models is None:
            self._models = self._load(record.data.problems) if self._home.models.is_dir() else []
        if not self._models:
            return
        from joblens.analysis.reference import applies, is_too_short, judge
        from joblens.store.end_groups import group_ends, merge_operations

        chosen = [it for it in self._models if applies(it, record.job) and not is_too_short(record, it)]
        if not chosen:
            return
        span = _span(record)
        try:
            operations, programs = (group_ends(reader, span, by) for by in (("tags",), ("name",)))
        except (OutsideError, OSError) as error:
            record.data.problems.append(f"it was not judged by its model: {sentence(error)}")
            return
        now = time.time()
        operations = merge_operations(operations)
        record.judged = [judge(record, operations, programs, it, now, is_stored=True) for it in chosen]
        word = UNUSUAL if any(it.unusual for it in record.judged) else USUAL
        record.job.annotations = {**(record.job.annotations or {}), JUDGED: word}

    def _load(self, problems: list[str]) -> list[ReferenceModel]:
        from joblens.store.models import list_models  # most stores have none

        return list(list_models(self._home, problems))


def _span(record: JobRecord) -> Span:
    from joblens.store.reader import Span

    job = record.job
    return Span(job.id, job.start, job.last + 1.0, job.cluster if job.nodes else "")
