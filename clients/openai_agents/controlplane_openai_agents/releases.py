"""The releases of the SDK that the tests run with; no other one is used."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

FIRST, LAST = "0.22.0", "0.24.0"


class UntestedRelease(ImportError):
    """The installed release of ``openai-agents`` is not one that this package is tested with."""


def require_tested_release() -> None:
    """Raise ``UntestedRelease`` unless the release of the SDK lies in the tested range."""
    try:
        found = version("openai-agents")
    except PackageNotFoundError:
        found = "not installed"
    if not _numbers(FIRST) <= _numbers(found) <= _numbers(LAST):
        raise UntestedRelease(
            f"openai-agents is {found}; this release of controlplane-openai-agents works with "
            f"{FIRST} to {LAST}: pip install 'openai-agents>={FIRST},<={LAST}'"
        )


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release)[:3])
