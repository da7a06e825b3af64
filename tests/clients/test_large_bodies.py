"""Bodies that are larger than the memory which a client takes for them."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator

import httpx
import pytest

from controlplane_client import Client, Run, Workspace
from tests.conftest import OWNER
from tests.support.waiting import LONG_WAIT

LARGE = 64 * 1024 * 1024
PIECE = os.urandom(1024 * 1024)

_MEASURED = """
from controlplane_cli.main import main
try:
    main()
finally:
    print(open("/proc/self/status").read())
"""
"""``svc``, which at its end prints what memory it has taken."""


def sent_to(path: str, pieces: int, environ: dict[str, str]) -> int:
    """Copy so many pieces from a pipe to a path; return the most KiB of memory that it took."""
    with subprocess.Popen(
        [sys.executable, "-c", _MEASURED, "cp", "-", path],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:

        def feed() -> None:
            assert process.stdin is not None
            with process.stdin as sink:
                for _ in range(pieces):
                    sink.write(PIECE)

        feeding = threading.Thread(target=feed)
        feeding.start()
        assert process.stdout is not None
        told = process.stdout.read().decode()
        feeding.join(LONG_WAIT)
    assert process.returncode == 0
    found = re.search(r"VmHWM:\s+(\d+) kB", told)
    assert found is not None
    return int(found[1])


@pytest.mark.docker
def test_input_of_any_length_is_copied_in_little_memory(
    svc_environ: dict[str, str], workspace: Workspace
) -> None:
    little = sent_to(f"{workspace.id}:/tmp/little", 0, svc_environ)
    much = sent_to(f"{workspace.id}:/tmp/much", LARGE // len(PIECE), svc_environ)
    assert workspace.files.stat("/tmp/little").size == 0
    stored = workspace.files.stat("/tmp/much", hash=True)
    whole = hashlib.sha256()
    for _ in range(LARGE // len(PIECE)):
        whole.update(PIECE)
    assert (stored.size, stored.sha256) == (LARGE, whole.hexdigest())
    assert (much - little) * 1024 < LARGE // 4


class Endless(httpx.SyncByteStream):
    """The lines of an export that is no record, one like the other."""

    def __iter__(self) -> Iterator[bytes]:
        line = b"{}" + b" " * 65_533 + b"\n"
        for _ in range(LARGE // len(line)):
            yield line


class Exporting(httpx.BaseTransport):
    """A service that answers everything with such an export."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Endless())


def test_a_record_of_any_length_is_verified_in_little_memory() -> None:
    with Client("http://service.test", OWNER, transport=Exporting()) as client:
        run = Run(client._connection, "00000000-0000-0000-0000-000000000001")
        tracemalloc.start()
        try:
            found = run.verify()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (found.ok, found.message) == (False, "line 1 was altered")
    assert peak < LARGE // 4
