"""Answers of the loop itself: short, and sent only to a client that takes them at once."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

from gunicorn.http.errors import (
    ExpectationFailed as ExpectedMore,
)
from gunicorn.http.errors import (
    LimitRequestHeaders,
    LimitRequestLine,
    ParseException,
    UnsupportedTransferCoding,
)

from controlplane.errors import BadRequest, ControlPlaneError, ExpectationFailed, HeadTooLarge


def refusal_of(error: Exception) -> ControlPlaneError:
    """Return what a client is told of a request that could not be read, or not be answered.

    Nothing of what was sent is repeated.
    """
    match error:
        case LimitRequestLine() | LimitRequestHeaders():
            return HeadTooLarge("The request line and the headers are too large.")
        case ExpectedMore():
            return ExpectationFailed("The only supported expectation is 100-continue.")
        case UnsupportedTransferCoding():
            told = "The only supported transfer coding is chunked."
            return BadRequest(told, code="malformed-request")
        case ParseException():
            return BadRequest("This is not a valid HTTP request.", code="malformed-request")
        case _:
            return ControlPlaneError("An unexpected error occurred.")


def send_last(sock: socket.socket, error: ControlPlaneError, path: str = "") -> None:
    """Tell a client why its connection ends, if it takes that at once."""
    # It reads settings that Django has only once the application is loaded.
    from controlplane.http.problems import CONTENT_TYPE, problem

    body = json.dumps(problem(error, "", path)).encode()
    again = "" if error.wait is None else f"Retry-After: {error.wait}\r\n"
    head = (
        f"HTTP/1.1 {error.status} {error.title}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\n{again}Connection: close\r\n\r\n"
    )
    send_at_once(sock, head.encode() + body)


def send_at_once(sock: socket.socket, data: bytes) -> None:
    """Send something short, if the client takes it; who does not need not have it."""
    with suppress(OSError):
        sock.send(data)
