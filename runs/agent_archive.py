"""The agent as one file for images: a zipapp whose bytes depend on nothing but the sources.

Entries are sorted and stored uncompressed with fixed timestamps and modes, so the same sources
give the same bytes with every Python and zlib, and the digest can be part of a plan's hash.

A start of it compiles what it imports. An image that has run its subcommand `compile` has the same
modules compiled beside it; their folder is named after the digest of the sources and the kind of
Python, so they are never used with another archive or by another Python.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent / "agent"
# Neither the user's settings nor what is installed beside the standard library counts.
_SHEBANG = b"#!/usr/bin/python3 -IS\n"
_ENTRY = """\
import os
import sys

COMPILED = f"{{__file__.rpartition('/')[0]}}.{sources}.{{sys.implementation.cache_tag}}"
# The standard library comes first, as most of what is imported is there; then this.
sys.path += [COMPILED, sys.path.pop(0)]

from agent import typing_names

sys.modules["typing"] = typing_names

from agent.__main__ import main

code = main(compiled=COMPILED)
sys.stdout.flush()
sys.stderr.flush()
# To take the interpreter apart takes as long as to start half of it, and somebody waits.
os._exit(code)
"""
_OLDEST_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


@cache
def agent_archive() -> bytes:
    """The executable archive; ask for Python 3.8 or later as `/usr/bin/python3`."""
    entries = {
        f"agent/{path.relative_to(_PACKAGE).as_posix()}": path.read_bytes()
        for path in _PACKAGE.rglob("*.py")
    }
    entries["__main__.py"] = _ENTRY.format(sources=_digest_of(entries)).encode()

    archive = io.BytesIO()
    archive.write(_SHEBANG)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        for name in sorted(entries):
            entry = zipfile.ZipInfo(name, _OLDEST_ZIP_DATE)
            entry.create_system = 3  # Unix, wherever the archive is made
            entry.external_attr = 0o100644 << 16
            file.writestr(entry, entries[name])
    return archive.getvalue()


@cache
def agent_digest() -> str:
    """SHA-256 of the archive, in hex."""
    return hashlib.sha256(agent_archive()).hexdigest()


def _digest_of(entries: dict[str, bytes]) -> str:
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in entries.items()}
    return hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:16]
