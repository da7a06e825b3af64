"""An application that tells what came of a body, and how much memory its process has taken."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from controlplane.http.body_limits import body_limit
from controlplane.wsgi import with_bounded_bodies

_CALLS: list[str] = []


def _peak() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def _open_uploads() -> int:
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            found += str(each.readlink()).startswith(os.environ["SVC_UPLOAD_DIR"])
        except FileNotFoundError:
            continue  # the one by which they were listed
    return found


def _tell(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    if environ["REQUEST_METHOD"] == "PUT":
        _CALLS.append(environ["PATH_INFO"])
    summed, size = hashlib.sha256(), 0
    while piece := environ["wsgi.input"].read(65536):
        summed.update(piece)
        size += len(piece)
    told = {
        "size": size,
        "length": environ.get("CONTENT_LENGTH"),
        "sha256": summed.hexdigest(),
        "peak": _peak(),
        "uploads": _open_uploads(),
        "calls": len(_CALLS),
    }
    body = json.dumps(told).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


application = with_bounded_bodies(_tell, limit_of=body_limit)
