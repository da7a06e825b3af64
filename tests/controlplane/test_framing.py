"""What the API's worker takes a request for before gunicorn sees it."""

from __future__ import annotations

import pytest

from controlplane.serving.framing import Incoming


@pytest.mark.parametrize(
    "target",
    [
        "/v1/files?path=a",
        "http://localhost:4000/v1/files?path=a",
        "http://localhost/v1/files",
        "/v1/files#part",
        "/v1/%66iles",
    ],
)
def test_the_limit_of_a_body_is_that_of_the_path_in_any_form_of_the_target(target: str) -> None:
    asked: list[str] = []

    def limit_of(path: str) -> int:
        asked.append(path)
        return 10

    incoming = Incoming(limit_of)
    incoming.feed(f"PUT {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc".encode())
    assert asked == ["/v1/files"]
