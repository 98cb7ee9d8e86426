"""The web application: the routes of the table, and the same error shape for everything else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as WebRoute

from joblens.serve.errors import ApiError
from joblens.serve.responses import refuse
from joblens.serve.routes import BASE, POLICIES, ROUTES, Route
from joblens.serve.service import Service

_MESSAGES = {404: "there is no such page; see /api/v1/openapi.json", 405: "this method is not supported here"}


class Endpoint:
    """A route of the table, bound to the service. It carries its policy, so that a test can find it."""

    def __init__(self, service: Service, route: Route) -> None:
        if route.policy not in POLICIES:
            raise ValueError(f"{route.path} has no policy")
        self.service, self.route = service, route

    def call(self) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await self.service.answer(self.route, request)

        answer.__name__ = self.route.answer.__name__
        answer.route = self.route  # type: ignore[attr-defined]
        return answer


def make_app(service: Service) -> Starlette:
    routes = [
        WebRoute(BASE + route.path, Endpoint(service, route).call(), methods=[route.method])
        for route in ROUTES
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refuse})
    app.router.redirect_slashes = False  # a redirect would contain the field Host as the client sent it
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    response = refuse(ApiError(status, _MESSAGES.get(status, "the request is not valid")))
    if status == 405 and isinstance(error, HTTPException) and error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
