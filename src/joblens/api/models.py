"""Reference models of a store: what jobs of one kind usually use."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from joblens.analysis.reference import LEAST_REFERENCE, measure_groups, measure_totals
from joblens.api.comparing import MOST_JOBS, PROGRAM, check_distinct, group_operations, name_unlike
from joblens.core.errors import JoblensError, UsageError
from joblens.record.model import ReferenceJob, ReferenceModel
from joblens.store.catalog.dialect import make_glob
from joblens.store.edit import is_staff
from joblens.store.models import (
    NoModelError,
    check_allowed,
    exists,
    load_model,
    save_model,
    user_name,
)

if TYPE_CHECKING:
    from joblens.api.store import Store
    from joblens.record.report import JobRecord
    from joblens.store.catalog.listing import JobFilter
    from joblens.store.catalog.scope import Scope


def visible(model: ReferenceModel, scope: Scope) -> bool:
    """Whether a reader may see the model: its figures are those of all of its jobs."""
    return scope.everything or all(scope.allows(job.user, job.account) for job in model.jobs)


def find_model(store: Store, name: str) -> ReferenceModel:
    """Raises NoModelError and MalformedError."""
    found = load_model(store.home, name)
    if not visible(found, store.scope):
        raise NoModelError(f"model {name}: not found, or not yours")
    return found


def create_model(
    store: Store, name: str, records: Sequence[JobRecord], wanted: JobFilter, replace: bool = False
) -> ReferenceModel:
    """Create a model of these jobs. Raises UsageError and JoblensError.

    It judges new jobs with the name and tags of the filter, or with those that all of its jobs have."""
    if not LEAST_REFERENCE <= len(records) <= MOST_JOBS:
        raise UsageError(f"a model is made of {LEAST_REFERENCE} to {MOST_JOBS} jobs, and not {len(records)}")
    check_distinct(records)
    before: ReferenceModel | None = None
    if exists(store.home, name):
        if not replace:
            raise JoblensError(f"there is a model {name!r} already; --replace makes it anew")
        check_allowed(store.home, before := load_model(store.home, name))
    job_name = None if wanted.name is None else make_glob(wanted.name)
    tags = dict(wanted.tags)
    if job_name is None and not tags:
        job_name, tags = _common(records)
    model = ReferenceModel(
        name=name,
        owner=before.owner if before else user_name(),
        created=time.time(),
        enabled=before.enabled if before else True,
        everyone=before.everyone if before else is_staff(store.home),
        job_name=job_name,
        tags=tags,
        jobs=[
            ReferenceJob(it.job.cluster, it.job.shown_id, it.job.start, it.job.user, it.job.account)
            for it in records
        ],
        totals=measure_totals(records),
        operations=measure_groups([group_operations(store, it) for it in records]),
        programs=measure_groups([store.end_groups(it, PROGRAM) for it in records]),
    )
    save_model(store.home, model)
    unlike = name_unlike(records)
    if unlike:
        store.add_problems([_warning(name, unlike)])
    return model


def _warning(model: str, unlike: Sequence[str]) -> str:
    names = ", ".join(unlike)
    which = f"job {names} is" if len(unlike) == 1 else f"jobs {names} are"
    return f"model {model}: {which} unlike the others, and such jobs count as usual"


def _common(records: Sequence[JobRecord]) -> tuple[str | None, dict[str, str]]:
    """Return the name and the tags that all of them have. A name is no pattern here."""
    names = {it.job.name for it in records}
    tags = reduce(lambda some, more: some & more, (set((it.job.tags or {}).items()) for it in records))
    name = names.pop() if len(names) == 1 else None
    return (_escaped(name) if name else None), dict(sorted(tags))


def _escaped(name: str) -> str:
    from glob import escape

    return escape(name)
