"""Warnings about variables of a blueprint that look like secrets: a blueprint is kept in clear."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from controlplane.security.redaction import redact

SECRET_IN_ENV: Final = "secret-in-env"  # noqa: S105 - the warning's code

_SECRET_NAME = re.compile(
    "TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|CREDENTIAL|PRIVATE_?KEY|ACCESS_?KEY",
    re.IGNORECASE,
)
"""The names whose values the agent masks in records."""
_NO_SECRET = re.compile(r"|[0-9.]+|true|false|yes|no|on|off|none|~?/[^:]*", re.IGNORECASE)
"""Values that tell nothing under any name: switches, numbers (``MAX_TOKENS``), paths of files."""


def env_warnings(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a warning for each variable of ``runtime.env`` that looks like a secret.

    Each is ``{code, detail, pointer}``; the value is not in it.
    """
    return [
        {
            "code": SECRET_IN_ENV,
            "detail": f"{name} looks like a secret, but blueprints are stored unencrypted. Connect "
            "a generic account with this name instead: it is sealed, and the workspace gets "
            "the same variable.",
            "pointer": f"/spec/runtime/env/{name}",
        }
        for name, value in env.items()
        if _looks_secret(name, value)
    ]


def _looks_secret(name: str, value: str) -> bool:
    if redact(value) != value:
        return True
    return _SECRET_NAME.search(name) is not None and _NO_SECRET.fullmatch(value) is None
