"""Which releases of E2B's SDKs are served: those within the range that the tests cover."""

from __future__ import annotations

import re
from collections.abc import Mapping

from e2bfacade.refused import Refused

Version = tuple[int, int, int]

TESTED: Mapping[str, tuple[Version, Version]] = {
    "python": ((2, 8, 0), (2, 63, 0)),
    "js": ((2, 8, 4), (2, 51, 0)),
}
"""The oldest and the newest release of each SDK that ``tests/clients/e2b`` has gone through."""

_AGENT = re.compile(r"e2b-(python|js)-sdk/([^\s,]+)")
_VERSION = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})(?![0-9])(.*)", re.DOTALL)


def check_release(headers: Mapping[str, str], *, required: bool) -> None:
    """Raise ``Refused`` for a release that was not tested, or with ``required`` for none at all.

    Calls of the control plane name language and version; of those into a sandbox only some do.
    """
    found = _AGENT.search(headers.get("user-agent", ""))
    language = headers.get("lang") or (found[1] if found else "")
    version = headers.get("package_version") or (found[2] if found else "")
    if not language and not version and not required:
        return
    served = " and ".join(
        f"e2b {_text(oldest)} to {_text(newest)} for {_NAMES[name]}"
        for name, (oldest, newest) in TESTED.items()
    )
    if language not in TESTED:
        raise Refused(400, "invalid_argument", f"Only E2B's SDKs are served here: {served}.")
    parts = _VERSION.fullmatch(version)
    oldest, newest = TESTED[language]
    if parts is None or parts[4] or not oldest <= _numbers(parts) <= newest:
        raise Refused(
            400,
            "invalid_argument",
            f"This release of E2B's SDK ({language} {version[:40] or 'unknown'}) was not tested "
            f"with this service. Install a tested one: {served}.",
        )


_NAMES = {"python": "Python", "js": "JavaScript"}


def _numbers(found: re.Match[str]) -> Version:
    return int(found[1]), int(found[2]), int(found[3])


def _text(version: Version) -> str:
    return ".".join(map(str, version))
