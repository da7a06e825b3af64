"""`agent git-credential`: what git asks for the password of the provider's host.

git runs it as the user, with `get`, `store` or `erase`. It has an answer to `get` for one host over
https only, and learns the token from memory at that moment, so nothing of it is in any file of git.
"""

from __future__ import annotations

import os
import sys
from typing import Dict

_MAX_REQUEST_BYTES = 64 * 1024
_USER = "x-access-token"


def answer(operation: str, host: str, token_path: str) -> int:
    """Answer git's question; nothing is said to any other."""
    request = _request(sys.stdin.buffer.read(_MAX_REQUEST_BYTES))
    asked_for_us = request.get("protocol") == "https" and request.get("host") == host
    if operation != "get" or not asked_for_us:
        return 0
    # A person may have written another name into the address; that one has another password.
    if request.get("username", _USER) != _USER:
        return 0
    try:
        descriptor = os.open(token_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor) as file:
            token = file.read().strip()
    except OSError:
        return 0
    if token and "\n" not in token:
        print(f"username={_USER}\npassword={token}")
    return 0


def _request(content: bytes) -> Dict[str, str]:
    lines = (line.partition("=") for line in content.decode("utf-8", "replace").splitlines())
    return {name: value for name, _, value in lines}
