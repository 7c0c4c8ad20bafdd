"""The reference of HTTP, from the server's OpenAPI schema."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, FastAPI

import server_app.routes
from sitegen.tables import code, table


def render() -> str:
    """A section for each route: who may call it, what it takes, what it gives."""
    routers = list(_routers())
    application = FastAPI()
    for router in routers:
        application.include_router(router)
    audiences = {
        (route.path, method): route.audience.value
        for router in routers
        for route in router.routes
        for method in getattr(route, "methods", ())
        if hasattr(route, "audience")
    }
    schema = application.openapi()
    routes = [
        _section(path, method.upper(), operation, audiences.get((path, method.upper()), "everybody"))
        for path, operations in sorted(schema["paths"].items())
        for method, operation in operations.items()
    ]
    return "\n".join(
        [*routes, "## Bodies\n", *(_body(*found) for found in sorted(schema["components"]["schemas"].items()))]
    )


def _body(name: str, schema: dict[str, Any]) -> str:
    """What a body in JSON consists of."""
    needed = schema.get("required", ())
    rows = [
        (code(key), _type(found), "required" if key in needed else "")
        for key, found in schema.get("properties", {}).items()
    ]
    text = inspect.cleandoc(schema.get("description", "")).replace("<", "\\<")
    return f"### {name}\n\n{text}\n\n{table(('key', 'type', ''), rows) if rows else ''}"


def _routers() -> Iterator[APIRouter]:
    for found in pkgutil.iter_modules(server_app.routes.__path__, "server_app.routes."):
        router = getattr(importlib.import_module(found.name), "router", None)
        if isinstance(router, APIRouter):
            yield router


def _section(path: str, method: str, operation: dict[str, Any], audience: str) -> str:
    text = inspect.cleandoc(operation.get("description") or operation["summary"]).replace("<", "\\<")
    taken = [
        (code(found["name"]), found["in"], _type(found.get("schema", {})), found.get("description", ""))
        for found in operation.get("parameters", [])
    ]
    body = operation.get("requestBody", {}).get("content", {})
    taken += [("body", kind, _type(content.get("schema", {})), "") for kind, content in body.items()]
    given = [
        (code(status), found.get("description", ""), ", ".join(_content(found)))
        for status, found in operation["responses"].items()
    ]
    parts = [f"## {method} {path}", f"For {audience}.", text]
    if taken:
        parts.append(table(("parameter", "in", "type", "meaning"), taken))
    return "\n\n".join([*parts, table(("status", "meaning", "body"), given)])


def _content(response: dict[str, Any]) -> Iterator[str]:
    for kind, content in response.get("content", {}).items():
        schema = _type(content.get("schema", {}))
        yield f"{schema} ({kind})" if schema else kind


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return code(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return code(schema["type"]) if "type" in schema else ""
