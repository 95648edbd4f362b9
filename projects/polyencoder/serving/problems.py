"""Error answers in one shape, which the clients of OpenAI and Cohere both read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from polyencoder.errors import ConfigError, InputError, PolyencoderError, get_first_line
from polyencoder.index.folder.files import IndexBusy, WriteError


class Details(BaseModel):
    """Details of an error, in the form of OpenAI's clients."""

    message: str = Field(description="What is wrong.")
    type: str = Field(description="invalid_request_error or server_error.")
    param: str | None = Field(description="The field that is wrong, if there is one.")
    code: int = Field(description="The status.")


class Problem(BaseModel):
    """Any error."""

    message: str = Field(description="What is wrong, and what to do.")
    error: Details


_STATUS = {IndexBusy: 503, WriteError: 507, InputError: 422, ConfigError: 422}
_log = logging.getLogger(__name__)


def build_response(
    status: int, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """An error answer; `param` names the field of the request."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    message, param = _escape_surrogates(message), None if param is None else _escape_surrogates(param)
    error = {"message": message, "type": kind, "param": param, "code": status}
    return JSONResponse({"message": message, "error": error}, status, headers=dict(headers or {}))


def _escape_surrogates(text: str) -> str:
    """A text with escapes in place of lone surrogates, which names in JSON may have and answers cannot."""
    return text.encode(errors="backslashreplace").decode()


def format_for_clients(error: PolyencoderError) -> str:
    """The message of an error for clients: its message for them, or its own if it is about their request."""
    if error.public is not None:
        return error.public
    return str(error) if isinstance(error, InputError | ConfigError) else "this fails now; the server's log says why"


def describe_invalid_body(errors: Sequence[Mapping[str, Any]], body: Any) -> tuple[str, str | None]:
    """The problem of a body that pydantic rejects with these errors, in one sentence, and the field."""
    # For a union, the deepest error belongs to the best-fitting type.
    first = max(errors, key=lambda error: len(_find_path(error, body)))
    where = ".".join(_find_path(first, body))
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return str(cause), ".".join(filter(None, (where, cause.argument))) or None
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] in ("model_type", "model_attributes_type"):
        message = "Input should be an object"
    return (f"{where}: {message}", where) if where else (message, None)


def _find_path(error: Mapping[str, Any], body: Any) -> list[str]:
    """The path of a value that pydantic rejects, such as `documents`, `0`, without the types that it tried."""
    location = error["loc"]
    parts: list[str] = []
    value = body
    for depth, part in enumerate(location, 1):
        try:
            value = value[part]
        except (LookupError, TypeError):
            if error["type"] != "missing" or depth < len(location):
                continue
        parts.append(str(part))
    return parts


def handle_problems(app: FastAPI) -> None:
    """Registers handlers for the library's errors, FastAPI's errors, and bugs."""

    async def answer_invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first: Mapping[str, Any] = error.errors()[0]
        source, *location = first["loc"]
        if source != "body":  # a parameter of the address
            where = ".".join(map(str, location))
            return build_response(422, f"{where}: {first['msg']}", param=where)
        if first["type"] == "json_invalid":
            return build_response(422, f"the body is not JSON: {first['ctx']['error']} at character {location[0] + 1}")
        message, param = describe_invalid_body(
            [{**entry, "loc": entry["loc"][1:]} for entry in error.errors()], error.body
        )
        if param is None and not request.headers.get("content-type", "").startswith("application/json"):
            message = "the body must be JSON, and Content-Type application/json"
        return build_response(422, message, param=param)

    async def answer_ours(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, PolyencoderError)
        message = format_for_clients(error)
        for kind, status in _STATUS.items():
            if isinstance(error, kind):
                return build_response(status, message, param=error.argument)
        _log.error("%s %s: %s", request.method, request.url.path, error)
        return build_response(503, message)

    async def answer_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        message = str(error.detail)
        if error.status_code == 400 and error.__cause__ is not None:  # FastAPI does not say what is wrong
            cause = get_first_line(error.__cause__)
            return build_response(422, f"the body cannot be read ({cause:.120}): send JSON in UTF-8, not compressed")
        if "route" not in request.scope and error.status_code == 404:
            message = f"there is no {request.url.path:.100}; /docs lists the routes. "
            message += "Chats are POST /v1/chat, scores POST /v1/rerank"
        return build_response(error.status_code, message, headers=error.headers)

    async def answer_bug(request: Request, error: Exception) -> JSONResponse:
        return build_response(500, "internal error; the server's log has the details")

    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(PolyencoderError, answer_ours)
    app.add_exception_handler(HTTPException, answer_http)
    app.add_exception_handler(Exception, answer_bug)
