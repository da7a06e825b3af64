"""The agent as one file for images: a zipapp whose bytes depend on nothing but the sources.

Entries are sorted and stored uncompressed with fixed timestamps and modes, so the same sources
give the same bytes with every Python and zlib, and the digest can be part of a plan's hash.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent / "agent"
_SHEBANG = b"#!/usr/bin/python3 -I\n"
_ENTRY = b"import sys\n\nfrom agent.__main__ import main\n\nsys.exit(main())\n"
_OLDEST_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


@cache
def agent_archive() -> bytes:
    """The executable archive; ask for Python 3.8 or later as `/usr/bin/python3`."""
    entries = {"__main__.py": _ENTRY}
    for path in _PACKAGE.rglob("*.py"):
        entries[f"agent/{path.relative_to(_PACKAGE).as_posix()}"] = path.read_bytes()

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
