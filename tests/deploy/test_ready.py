"""What `make up` says of an API that answers, but not that it is ready."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deploy.up.ready import api_problem

_NOT_ALLOWED = {
    "code": "host-not-allowed",
    "detail": "The service does not answer to this host: SVC_ALLOWED_HOSTS lists those it does.",
}
_CHECKS = [
    {"name": "database", "ok": True, "required": True, "detail": "It answers."},
    {"name": "broker", "ok": False, "required": True, "detail": "It does not answer."},
    {"name": "warmPool", "ok": False, "required": False, "detail": "Nothing to worry about."},
]


@contextmanager
def _answering(answer: bytes) -> Iterator[dict[str, str]]:
    """The settings of an API that answers one request with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield {"SVC_API_PORT": str(listener.getsockname()[1])}
        thread.join()


def _http(status: str, body: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return (head + body).encode()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (_http("400 Bad Request", json.dumps(_NOT_ALLOWED)), " answers 400: .*SVC_ALLOWED_HOSTS"),
        (_http("500 Error", "<html>\n <h1>Error</h1>"), " answers 500: <html> <h1>Error</h1>"),
        (_http("200 OK", "[1]"), r" answers 200: \[1\]"),
        (_http("503 Unavailable", json.dumps({"checks": _CHECKS})), " says broker: It does not"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0-OpenSSH"),
        (b"", "closed connection"),
    ],
    ids=["host not allowed", "page", "other body", "not ready", "another protocol", "nothing"],
)
def test_an_answer_that_is_not_of_the_check_itself_is_told(answer: bytes, told: str) -> None:
    with _answering(answer) as environ:
        problem = api_problem(environ)
    assert re.search(told, problem), problem


def test_what_is_well_is_no_problem() -> None:
    well = [{**check, "ok": True} for check in _CHECKS]
    with _answering(_http("200 OK", json.dumps({"checks": well}))) as environ:
        assert api_problem(environ) == ""
