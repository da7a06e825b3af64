"""Secrets that are told apart from everything else, and every place where they might turn up.

Each holds one marker. Whatever a program does to a secret (base64 at any alignment, escapes of URLs
or JSON, hexadecimal) leaves one of the marker's few spellings, so one search finds all of them.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import requests
from django.conf import settings
from django.db import connection

from tests.registries.account import BASIC
from tests.support.waiting import LONG_WAIT

MARKER = "qUaIlCaNaRyQx"
PIECE_BYTES = 1024 * 1024


def _spellings() -> Iterator[bytes]:
    raw = MARKER.encode()
    yield raw
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw)
        yield encoded[(0, 2, 3)[before] : len(encoded) - (0, 3, 2)[(before + len(raw)) % 3]]
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    yield raw[::-1]
    yield b"\0".join(bytes([byte]) for byte in raw)  # UTF-16


SPELLINGS = tuple(_spellings())
_ANY = re.compile(b"|".join(map(re.escape, SPELLINGS)))
_LONGEST = max(map(len, SPELLINGS))


def secret(provider: str, number: int) -> str:
    """Return the canary of this number, of its provider's shape."""
    token = f"{MARKER}{number:04}{'x' * 24}"
    if provider == "claude":
        return f"sk-ant-oat01-{token}{'y' * 60}"  # as long as a real one
    if provider == "github":
        return f"ghp_{token}"
    if provider == "codex":
        tokens = {
            "refresh_token": f"rt.{token}/a+b",
            "access_token": f"at-{token}==",
            "id_token": f"e30.e30.{token}",
            "account_id": f"account-{number}",
        }
        document = {"OPENAI_API_KEY": f"sk-{token}", "tokens": tokens}
        return json.dumps({**document, "last_refresh": "2026-01-01T00:00:00Z"}, indent=2)
    shapes = [
        token,
        f"with/slashes/{token}/and more?of=it&so+on",
        f"spaces, \"quotes\" and 'others' {token} \\ % # umläute €",
        f"-----BEGIN CANARY-----\n{token}\n{token[::-1]}\n{token}\n-----END CANARY-----\n",
        f"https://user:{token}@host.invalid/path;a=b,c!(d)*",
        f'{{"json": "{token}", "also": ["{token}/{number}"]}}',
    ]
    return shapes[number % len(shapes)]


def found_in(data: bytes) -> bytes | None:
    """Return the place where a canary is, with what stands around it; None when there is none."""
    match = _ANY.search(data)
    return data[max(0, match.start() - 60) : match.end() + 60] if match else None


def found_in_stream(chunks: Iterable[bytes]) -> bytes | None:
    """Search what comes in pieces, which may cut a canary anywhere."""
    tail = b""
    for chunk in chunks:
        found = found_in(tail + chunk)
        if found:
            return found
        tail = (tail + chunk)[-_LONGEST:]
    return None


# ---------------------------------------------------------------- the database


def values_in_database() -> Iterator[tuple[str, bytes]]:
    """Every value of every column of every table, with where it is; large ones unpacked too."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select table_schema, table_name from information_schema.tables"
            " where table_type = 'BASE TABLE'"
            " and table_schema not in ('pg_catalog', 'information_schema')"
        )
        tables = cursor.fetchall()
    for schema, table in tables:
        with connection.cursor() as cursor:
            cursor.execute(f'select * from "{schema}"."{table}"')  # noqa: S608 - the catalogue's
            names = [column[0] for column in cursor.description or ()]
            for row in cursor:
                for name, value in zip(names, row, strict=True):
                    yield from _unpacked(f"{table}.{name}", value)


def _unpacked(place: str, value: Any) -> Iterator[tuple[str, bytes]]:
    content = bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
    yield place, content
    if isinstance(value, bytes | memoryview):
        for unpack in (zlib.decompress, gzip.decompress, base64.b64decode):
            try:
                yield f"{place} ({unpack.__name__})", unpack(content)
            except (ValueError, zlib.error, OSError, EOFError):
                continue


# ---------------------------------------------------------------- images


def registry_blobs(repository: str, tag: str) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The manifest of an image and every blob that it names, as they are and unpacked."""
    root = f"{settings.REGISTRY_BASE_URL}/v2/{repository}"
    accept = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = requests.get(
        f"{root}/manifests/{tag}", headers={"accept": accept}, auth=BASIC, timeout=LONG_WAIT
    )
    manifest.raise_for_status()
    yield "manifest", iter([manifest.content])
    described = manifest.json()
    for blob in [described["config"], *described["layers"]]:
        answer = requests.get(f"{root}/blobs/{blob['digest']}", auth=BASIC, timeout=LONG_WAIT)
        answer.raise_for_status()
        yield blob["digest"], iter([answer.content])
        if answer.content[:2] == b"\x1f\x8b":
            yield f"{blob['digest']} (unpacked)", _unzipped(answer.content)


def _unzipped(content: bytes) -> Iterator[bytes]:
    with gzip.open(io.BytesIO(content)) as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


# ---------------------------------------------------------------- processes


class ProcessList:
    """Looks at the arguments of every process of the machine, again and again."""

    def __init__(self) -> None:
        self.found: set[bytes] = set()
        self.looks = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> ProcessList:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(0.05):
            self.looks += 1
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    found = found_in(entry.read_bytes())
                except OSError:
                    continue
                if found:
                    self.found.add(found)
