"""What all requests share, and the way of one request: identity, policy, turn, answer."""

from __future__ import annotations

import fcntl
import os
import traceback
from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from joblens.api.lookup import Tsdb
from joblens.api.source import AmbiguousError
from joblens.core.errors import JoblensError, OutsideError, ServerError, UsageError, sentence
from joblens.core.log_limiter import LogLimiter
from joblens.hub.auth import MungeQueue
from joblens.serve.audit import Audit
from joblens.serve.errors import ApiError
from joblens.serve.hub_pages import HubPages
from joblens.serve.identity import SOCKET, Identify, Identity, is_personal
from joblens.serve.openapi import describe
from joblens.serve.policy import Policy, Viewer
from joblens.serve.pool import StorePool, Turns
from joblens.serve.requests import parse_id, parse_query, read_body
from joblens.serve.responses import Body, accepts_gzip, encode, refuse, respond, respond_once
from joblens.serve.routes import ANYONE, JOBS, LIVE, ROUTES, TOKENS, Question, Route
from joblens.serve.settings import ServeSettings
from joblens.serve.tokens import Tokens
from joblens.serve.views import View
from joblens.store.catalog.scope import Scope
from joblens.store.home import Home

_NOBODY = Viewer("", -1, "", "", Scope(False, frozenset(), frozenset()))
_ONLY_SOCKET = "tokens are managed through the Unix socket of the service only, as the user whose they are"


class Service:
    def __init__(
        self, settings: ServeSettings, home: Home, state: Path, pages: HubPages, log: Callable[[str], None]
    ) -> None:
        self.settings, self.home, self.log = settings, home, log
        self._lock = lock_state(state)
        self.tokens = Tokens(state / "tokens.json")
        self.audit = Audit(Path(settings.audit_file) if settings.audit_file else state / "audit.log")
        self.policy = Policy(settings)
        self.pool = StorePool(home, settings.threads, log)
        self.pages = pages
        self.tsdb: Tsdb | None = None
        self.description = describe(ROUTES)
        self._fixed: dict[tuple[str, bool], Body] = {}  # answers to everyone are always the same
        self.notes = LogLimiter(log)
        munge = MungeQueue(settings.munge_socket) if settings.munge else None
        personal = is_personal(settings, home.path, state, os.geteuid())
        self._identify = Identify(self.tokens, munge, personal)
        self._turns = Turns(max(settings.threads // 2, 1), settings.requests_per_user)

    async def answer(self, route: Route, request: Request) -> Response:
        """Answer a request, also if it is refused or fails."""
        try:
            return await self._answer(route, request)
        except Exception as error:  # one request must not end the service
            return refuse(self._explain(route, error))

    def _explain(self, route: Route, error: Exception) -> ApiError:
        """Return what the client gets. The reason of a failure is in the log only."""
        if isinstance(error, ApiError):
            return error
        # A KeyError or an IndexError is a defect.
        if isinstance(error, LookupError) and not isinstance(error, (KeyError, IndexError)):
            return ApiError(409 if isinstance(error, AmbiguousError) else 404, str(error.args[0]))
        if isinstance(error, ServerError):
            return ApiError(502, sentence(error))
        if isinstance(error, (OutsideError, OSError)):
            self.notes.say(f"{route.path} {type(error).__name__}", f"{route.path}: {sentence(error)}")
            return ApiError(503, "the store cannot be read; the log of the service says why")
        if isinstance(error, JoblensError):
            return ApiError(400 if error.exit_code == UsageError.exit_code else 404, str(error))
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        self.notes.say(f"{route.path} {where}", f"{route.path}: {type(error).__name__} at {where}: {error}")
        return ApiError(500, "the service failed; its log says why")

    async def _answer(self, route: Route, request: Request) -> Response:
        if "transfer-encoding" in request.headers:  # a proxy may see its end elsewhere
            raise ApiError(411, "Content-Length required: chunked bodies are not supported")
        viewer = _NOBODY if route.policy == ANYONE else await self._view(request)
        if route.policy == TOKENS and viewer.how != SOCKET:
            raise ApiError(403, _ONLY_SOCKET)
        text = request.scope["query_string"].decode("latin-1")
        query = parse_query(text, route.query)
        id = parse_id(request.path_params["id"]) if "id" in request.path_params else ""
        body = None if route.body is None else await read_body(request, route.body)
        question = Question(self, viewer, query, id, text, body)
        page = await self.pages.get(route.page) if route.page else None
        if route.policy == ANYONE:
            return respond(self._encoded(route, question, accepts_gzip(request.headers)), request.headers)
        async with self._turns.of(viewer.uid):
            if route.method != "GET":
                return respond_once(await self.pool.run_plain(lambda: route.answer(question)))
            may_gzip = accepts_gzip(request.headers)
            if route.policy in (JOBS, LIVE):
                found = await self.pool.run(
                    lambda store: encode(
                        route.answer(question, View(store, viewer, self.audit, page, self.tsdb)), may_gzip
                    )
                )
            else:
                found = await self.pool.run_plain(lambda: encode(route.answer(question), may_gzip))
        return respond(found, request.headers)

    def _encoded(self, route: Route, question: Question, may_gzip: bool) -> Body:
        key = route.path, may_gzip
        if key not in self._fixed:
            self._fixed[key] = encode(route.answer(question), may_gzip)
        return self._fixed[key]

    async def _view(self, request: Request) -> Viewer:
        """Raises ApiError."""
        identity: Identity = await self._identify(request.state.peer, request.headers, request.state.proven)
        if self.policy.is_known(identity.uid):
            viewer = self.policy.view(identity)
        else:
            viewer = await self.pool.run_plain(lambda: self.policy.view(identity))
        if viewer is None:
            raise ApiError(401, "the user of this token no longer exists")
        return viewer

    def distrust_loopback(self) -> None:
        """Require a credential on TCP from everybody."""
        self._identify.trusts_loopback = False

    def start(self) -> None:
        self.pool.start()

    def close(self) -> None:
        self.pool.close()
        self.audit.close()
        os.close(self._lock)


def lock_state(state: Path) -> int:
    """Return a lock on the folder: a second service would bring revoked tokens back. Raises OutsideError."""
    file = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise OutsideError(f"another service uses {state}: set serve.state to a folder of its own") from None
    return file
