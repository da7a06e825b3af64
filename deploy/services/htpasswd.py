"""The line of an htpasswd file, hashed with bcrypt: the one form that OCI registries read.

``python -m deploy.services.htpasswd NAME < PASSWORD`` prints it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import secrets
import sys

from deploy.services.errors import SetupError

_LETTERS = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
# The registry hashes at every request. What protects a password of 256 random bits is its length.
_COST = 4


def htpasswd_line(name: str, password: str) -> str:
    """Return the line for an account; raises SetupError where the system cannot hash."""
    # The last letter stands for two bits only.
    salt = "".join(secrets.choice(_LETTERS) for _ in range(21)) + secrets.choice(".Oeu")
    setting = f"$2b${_COST:02}${salt}"
    # Not Python's module of the same purpose, which 3.13 no longer has.
    for library in (ctypes.util.find_library("crypt"), "libcrypt.so.1", "libcrypt.so.2", None):
        try:
            crypt = ctypes.CDLL(library).crypt
        except (OSError, AttributeError):
            continue
        crypt.argtypes, crypt.restype = [ctypes.c_char_p, ctypes.c_char_p], ctypes.c_char_p
        hashed = crypt(password.encode(), setting.encode())
        if hashed and hashed.startswith(setting.encode()):
            return f"{name}:{hashed.decode()}\n"
    raise SetupError(
        "This system's libcrypt knows no bcrypt, which the private registry's account needs. "
        "Install libcrypt (libxcrypt), or set REGISTRY_BASE_URL to a registry of yours."
    )


if __name__ == "__main__":
    print(htpasswd_line(sys.argv[1], sys.stdin.readline().rstrip("\n")), end="")
