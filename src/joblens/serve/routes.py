"""The routes: each with its policy, the types of its query and answer, and the function that answers it.

The table is the only way to add a route, and the policy decides what its function gets: a function of JOBS
has no other access to jobs than a `View`, which is bound to the scope of the viewer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.api.lookup import plain_report
from joblens.hub.status import StatusPage
from joblens.record.ends import EndedProcess, EndedThread
from joblens.record.model import ReferenceModel
from joblens.record.report import JobRecord
from joblens.serve.errors import ApiError
from joblens.serve.messages import (
    EndedProcessesPage,
    EndedProcessItem,
    EndedThreadItem,
    EndedThreadsPage,
    GroupItem,
    GroupsPage,
    GroupsQuery,
    Health,
    JobsPage,
    JobsQuery,
    Me,
    ModelsPage,
    NodesPage,
    NoQuery,
    ProcessesPage,
    ReportQuery,
    RunQuery,
    SeriesPage,
    SeriesQuery,
    SetsPage,
    TokenMade,
    TokenRequest,
    TokensPage,
)
from joblens.serve.policy import ADMIN, Viewer
from joblens.wire.live import LivePage

if TYPE_CHECKING:
    from joblens.serve.service import Service
    from joblens.serve.views import View

BASE = "/api/v1"
ANYONE, SELF, JOBS, LIVE, TOKENS = POLICIES = ("anyone", "self", "jobs", "live", "tokens")


class Question(NamedTuple):
    """A request, authenticated and checked."""

    service: Service
    viewer: Viewer
    query: Any  # of the route's type
    id: str = ""  # in the path
    text: str = ""  # the query as it was sent
    body: Any = None  # of the route's type


class Route(NamedTuple):
    path: str
    policy: str
    answer: Callable[..., Any]  # with JOBS and LIVE of the view too
    returns: Any
    query: type = NoQuery
    method: str = "GET"
    body: type | None = None
    page: str = ""  # of the hub, with LIVE

    @property
    def summary(self) -> str:
        return (self.answer.__doc__ or "").partition("\n")[0]


def health(question: Question) -> Health:
    """Whether the service answers."""
    return Health()


def describe(question: Question) -> Any:
    """This description."""
    return question.service.description


def me(question: Question) -> Me:
    """Who is asking, and what they may see."""
    viewer = question.viewer
    return Me(viewer.user, viewer.uid, viewer.role, sorted(viewer.scope.accounts), viewer.how)


def jobs(question: Question, view: View) -> JobsPage:
    """Stored and running jobs, with the filters of `joblens jobs`."""
    return view.jobs(question.query, question.text)


def job(question: Question, view: View) -> Any:
    """The report of a job, as `joblens job --json` prints it."""
    return plain_report(view.report(question.id, question.query))


def sets(question: Question, view: View) -> SetsPage:
    """The sets that have samples of a job, and their columns."""
    return SetsPage(view.columns(question.id))


def series(question: Question, view: View) -> SeriesPage:
    """Samples of a set over the time of a job, as at most so many points that keep the peaks."""
    return view.series(question.id, question.query)


def processes(question: Question, view: View) -> ProcessesPage:
    """Every process of a job that sampling saw."""
    return ProcessesPage(view.processes(question.id))


def ended_processes(question: Question, view: View) -> EndedProcessesPage:
    """Processes of a job at their end, of those with capture."""
    found, cut = view.ends(question.id, EndedProcess, question.query.run, "/jobs/ID/ended/processes")
    return EndedProcessesPage([EndedProcessItem(*it) for it in found], cut)


def ended_threads(question: Question, view: View) -> EndedThreadsPage:
    """Threads of a job at their end, of those with capture."""
    found, cut = view.ends(question.id, EndedThread, question.query.run, "/jobs/ID/ended/threads")
    return EndedThreadsPage([EndedThreadItem(*it) for it in found], cut)


def ended_groups(question: Question, view: View) -> GroupsPage:
    """Processes of a job that are alike, added up, of those with capture."""
    found, cut = view.groups(question.id, question.query)
    return GroupsPage([GroupItem(*it) for it in found], cut)


def models(question: Question, view: View) -> ModelsPage:
    """Reference models all of whose jobs the viewer may see, without their figures."""
    return view.models()


def model(question: Question, view: View) -> ReferenceModel:
    """A reference model, as `joblens model show --json` prints it."""
    return view.model(question.id)


def nodes(question: Question, view: View) -> NodesPage:
    """Nodes with the running jobs of the viewer on them; all nodes for support and admin."""
    return view.nodes()


def now(question: Question, view: View) -> LivePage:
    """Live figures of nodes and jobs, as `joblens top` shows them."""
    return view.now()


def hub_sets(question: Question, view: View) -> StatusPage:
    """Status of nodes, sets and jobs, as `joblens ls` shows it."""
    return view.sets()


def list_tokens(question: Question) -> TokensPage:
    """The viewer's tokens; those of all users for admin."""
    uid = None if question.viewer.role == ADMIN else question.viewer.uid
    return TokensPage(question.service.tokens.of(uid, time.time()))


def create_token(question: Question) -> TokenMade:
    """Create a token for the viewer."""
    viewer, asked, most = question.viewer, question.body, question.service.settings.token_days
    if not viewer.user:
        raise ApiError(403, f"uid {viewer.uid} has no user name, so it cannot have a token")
    days = most if asked.days is None else asked.days
    if days > most:
        raise ApiError(400, f"a token is valid for at most {most} days here, not {days}")
    made = question.service.tokens.create(viewer.user, viewer.uid, asked.name, days, time.time())
    return TokenMade(*made)


def revoke_token(question: Question) -> TokensPage:
    """Revoke a token, and return those that remain."""
    uid = None if question.viewer.role == ADMIN else question.viewer.uid
    question.service.tokens.revoke(question.id, uid)
    return list_tokens(question)


ROUTES = (
    Route("/health", ANYONE, health, Health),
    Route("/openapi.json", ANYONE, describe, dict),
    Route("/me", SELF, me, Me),
    Route("/jobs", JOBS, jobs, JobsPage, JobsQuery),
    Route("/jobs/{id}", JOBS, job, JobRecord, ReportQuery),
    Route("/jobs/{id}/sets", JOBS, sets, SetsPage),
    Route("/jobs/{id}/series", JOBS, series, SeriesPage, SeriesQuery),
    Route("/jobs/{id}/processes", JOBS, processes, ProcessesPage),
    Route("/jobs/{id}/ended/processes", JOBS, ended_processes, EndedProcessesPage, RunQuery),
    Route("/jobs/{id}/ended/threads", JOBS, ended_threads, EndedThreadsPage, RunQuery),
    Route("/jobs/{id}/ended/groups", JOBS, ended_groups, GroupsPage, GroupsQuery),
    Route("/models", JOBS, models, ModelsPage),
    Route("/models/{id}", JOBS, model, ReferenceModel),
    Route("/nodes", LIVE, nodes, NodesPage, page="/now"),
    Route("/now", LIVE, now, LivePage, page="/now"),
    Route("/sets", LIVE, hub_sets, StatusPage, page="/sets"),
    Route("/tokens", TOKENS, list_tokens, TokensPage),
    Route("/tokens", TOKENS, create_token, TokenMade, method="POST", body=TokenRequest),
    Route("/tokens/{id}", TOKENS, revoke_token, TokensPage, method="DELETE"),
)
