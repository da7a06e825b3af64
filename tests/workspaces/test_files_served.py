"""Files through the real server: gunicorn, a real connection, and a workspace that runs."""

from __future__ import annotations

import hashlib
import http.client
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.conftest import OWNER
from tests.security.test_slow_clients import serving
from tests.stack.worker_process import environment
from tests.support.waiting import LONG_WAIT
from tests.workspaces.boxes import Box, sha256

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

PIECE = os.urandom(1 << 20)
PIECES = 256


@pytest.fixture
def port(box: Box) -> Iterator[int]:
    """Where the API answers for the workspace."""
    here = environment()
    with serving(**{name: here[name] for name in ("DATABASE_URL", "SVC_INSTANCE_ID")}) as port:
        yield port


def asked(
    port: int, box: Box, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, dict[str, str], str, int]:
    """Return status, headers, and the hash and size of the content."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_WAIT)
    try:
        query = urlencode({"ownerUserId": OWNER, "path": path})
        place = f"/v1/workspaces/{box.workspace_id}/files?{query}"
        connection.request(method, place, body, headers)
        answer = connection.getresponse()
        summed, size = hashlib.sha256(), 0
        while piece := answer.read(1 << 20):
            summed.update(piece)
            size += len(piece)
        return answer.status, {**answer.headers}, summed.hexdigest(), size
    finally:
        connection.close()


def test_a_large_file_goes_there_and_back(box: Box, port: int) -> None:
    expected = hashlib.sha256(PIECE * PIECES).hexdigest()
    status, headers, _, _ = asked(port, box, "PUT", "large", iter([PIECE] * PIECES))
    assert (status, headers["ETag"]) == (201, f'"{expected}"')
    assert box.run("sha256sum < large").split()[0] == expected
    status, headers, read, size = asked(port, box, "GET", "large")
    assert (status, read, size) == (200, expected, PIECES << 20)
    status, headers, read, _ = asked(port, box, "GET", "large", Range="bytes=1048576-2097151")
    assert (status, read) == (206, sha256(PIECE))
    status, headers, _, size = asked(port, box, "HEAD", "large")
    assert (status, size, headers["Content-Length"]) == (200, 0, str(PIECES << 20))


def test_an_upload_whose_client_leaves_never_begins(box: Box, port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_WAIT)
    query = urlencode({"ownerUserId": OWNER, "path": "half"})
    connection.putrequest("PUT", f"/v1/workspaces/{box.workspace_id}/files?{query}")
    connection.putheader("Content-Length", str(10 << 20))
    connection.endheaders(PIECE)
    connection.close()
    assert asked(port, box, "PUT", "whole", PIECE)[0] == 201
    assert box.run("ls").split() == ["whole"]
    assert box.left_behind() == ""
