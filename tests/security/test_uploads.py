"""Bodies of any size: the real server keeps them on its disk, and gives whole ones to a thread."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.security.test_slow_clients import serving
from tests.stack.disks import small_disk
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.slow

APPLICATION = "tests.security.counted_uploads"
PATIENT = "tests.security.lingering"
PATH = "/v1/workspaces/019af2c0-0000-7000-8000-00000000000a/files?path=file"
PIECE = os.urandom(1 << 20)
PIECES = 300
REFUSALS = {"body-too-large", "upload-disk-full"}


def pieces() -> Iterator[bytes]:
    yield from [PIECE] * PIECES


def asked(port: int, method: str = "GET", body: Any = None, **headers: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_WAIT)
    try:
        connection.request(method, PATH, body, headers)
        answer = connection.getresponse()
        return json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize("form", ["with its length", "in chunks"])
def test_a_large_body_takes_no_memory(form: str, tmp_path: Path) -> None:
    expected = hashlib.sha256(PIECE * PIECES).hexdigest()
    length = {"Content-Length": str(PIECES << 20)} if form == "with its length" else {}
    with serving(APPLICATION, SVC_UPLOAD_DIR=str(tmp_path)) as port:
        before = asked(port)["peak"]
        told = asked(port, "PUT", pieces(), **length)
        assert (told["size"], told["sha256"]) == (PIECES << 20, expected)
        assert told["length"] == str(PIECES << 20)
        assert told["peak"] - before < 16 << 20
        assert list(tmp_path.iterdir()) == []


def test_a_client_that_leaves_reaches_nobody_and_its_bytes_are_forgotten(tmp_path: Path) -> None:
    with serving(APPLICATION, SVC_UPLOAD_DIR=str(tmp_path)) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            head = f"PUT {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {100 << 20}\r\n\r\n"
            client.sendall(head.encode() + PIECE * 5)
            until = time.monotonic() + LONG_WAIT
            while asked(port)["uploads"] == 0:
                assert time.monotonic() < until, "the body is not kept on the disk"
                time.sleep(0.05)
        while (told := asked(port))["uploads"]:
            assert time.monotonic() < until, "what is left of the body is kept"
            time.sleep(0.05)
        assert told["calls"] == 0


def test_a_body_above_the_limit_is_refused(tmp_path: Path) -> None:
    limits = {"SVC_MAX_FILE_BYTES": str(5 << 20), "SVC_UPLOAD_DIR": str(tmp_path)}
    with serving(PATIENT, **limits) as port:
        for length in ({"Content-Length": str(6 << 20)}, {}):
            told = asked(port, "PUT", iter([PIECE] * 6), **length)
            assert (told["status"], told["code"]) == (413, "body-too-large")
        assert asked(port, "PUT", PIECE)["code"] not in REFUSALS


def test_an_upload_that_the_disk_does_not_take_is_refused(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "small", "4m") as place,
        serving(PATIENT, SVC_UPLOAD_DIR=str(place)) as port,
    ):
        # At once, and so that the last of what the disk takes is less than a file's buffer.
        for body in (PIECE * 6, [PIECE[:1448]] * 4345):
            told = asked(port, "PUT", body)
            assert (told["status"], told["code"]) == (503, "upload-disk-full")
        assert asked(port, "PUT", PIECE)["code"] not in REFUSALS
