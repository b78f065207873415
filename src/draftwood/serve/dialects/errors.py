"""Errors in the shape of the interface whose route was called."""

from __future__ import annotations

from starlette.responses import JSONResponse

from draftwood.serve.dialects import messages, ollama
from draftwood.serve.errors import ApiError


def error_response(error: ApiError, path: str) -> JSONResponse:
    """The response of a refused or failed request for a path."""
    found = error.to_json()
    if path.startswith("/v1/messages"):
        found = messages.error_of(found, error.status)
    elif path.startswith("/api/"):
        found = ollama.error_of(found)
    return JSONResponse(found, error.status, error.headers)
