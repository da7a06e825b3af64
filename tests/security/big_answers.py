"""An application whose answers are larger than any buffer on their way, for slow readers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()  # gunicorn's configuration asks for it, as it does of the real one

BLOCK = b"x" * 65536
BLOCKS = 1024


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
    """Answer 64 MiB at ``/big``, and a word elsewhere."""
    count = BLOCKS if environ["PATH_INFO"] == "/big" else 0
    length = len(BLOCK) * count + 2
    start_response("200 OK", [("content-type", "text/plain"), ("content-length", str(length))])
    for _ in range(count):
        yield BLOCK
    yield b"ok"
