"""The OpenAPI description, generated from the routes and their types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from joblens import __version__
from joblens.serve.errors import ErrorBody
from joblens.serve.routes import ANYONE, BASE, Route

_REFERENCE = "#/components/schemas/{name}"
_JSON = "application/json"
_TITLE = "joblens"
_FAILURES = {
    "400": "the request is not valid",
    "401": "authentication failed",
    "403": "not allowed in this way",
    "404": "not found, or not yours",
    "409": "several jobs are meant, or a limit is reached",
    "411": "the length of the body is missing",
    "413": "the request is too large",
    "429": "too many requests at once",
    "500": "the service failed",
    "502": "a server behind the service failed",
    "503": "the service cannot answer now",
}
_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer"},
    "munge": {"type": "apiKey", "in": "header", "name": "Authorization"},
}


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    types = [ErrorBody, *(it for route in routes for it in (route.returns, route.query, route.body) if it)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    names = {id(kind): schema for kind, schema in zip(types, schemas)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(BASE + route.path, {})[route.method.lower()] = _operation(route, names, components)
    start = components["Job"]["properties"]["start"]
    start["anyOf"].append({"type": "null"})  # of a job that never started
    for query in {route.query.__name__ for route in routes}:
        components.pop(query, None)
    return {
        "openapi": "3.1.0",
        "info": {"title": _TITLE, "version": __version__, "description": "What jobs did, read-only."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
    }


def _operation(route: Route, names: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.answer.__name__,
        "summary": route.summary,
        "parameters": [*_of_path(route), *_of_query(route, components)],
        "responses": {
            "200": {"description": "success", "content": {_JSON: {"schema": names[id(route.returns)]}}},
            **{status: _failure(words) for status, words in _FAILURES.items()},
        },
    }
    if route.policy != ANYONE:
        found["security"] = [{}, *({name: []} for name in _SCHEMES)]
    if route.body is not None:
        found["requestBody"] = {"required": False, "content": {_JSON: {"schema": names[id(route.body)]}}}
    return found


def _of_path(route: Route) -> list[dict[str, Any]]:
    if "{id}" not in route.path:
        return []
    kind = {"type": "string", "minLength": 1, "maxLength": 200}
    return [{"name": "id", "in": "path", "required": True, "schema": kind}]


def _of_query(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    properties = components[route.query.__name__].get("properties", {})
    return [{"name": name, "in": "query", "schema": kind} for name, kind in properties.items()]


def _failure(words: str) -> dict[str, Any]:
    schema = {"$ref": _REFERENCE.format(name=ErrorBody.__name__)}
    return {"description": words, "content": {_JSON: {"schema": schema}}}
