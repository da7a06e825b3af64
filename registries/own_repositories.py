"""Whose the repositories are: behind a proxy that names its callers, each sees their own alone.

The app that publishes knows whose they are, and registers itself here (:func:`register`).
"""

from __future__ import annotations

from collections.abc import Callable

from controlplane.errors import Fault, NotFound


def _nobodys(registry_id: str, name: str) -> str | None:
    """Return None: before an app has registered itself, no repository is anybody's."""
    return None


_asked: dict[str, Callable[[str, str], str | None]] = {"owner_of": _nobodys}


def register(owner_of: Callable[[str, str], str | None]) -> None:
    """Have ``owner_of`` tell whose the repository of a registry is; None for nobody's."""
    _asked["owner_of"] = owner_of


def require_own(registry_id: str, name: str, *, caller: str | None) -> None:
    """Raise ``NotFound`` (``repository-not-found``) for what the caller has not published to.

    Whether it is another owner's or there is none is not told. ``caller`` is None where nobody is
    identified, and every repository may be read.
    """
    if caller is not None and _asked["owner_of"](registry_id, name) != caller:
        raise repository_not_found()


def repository_not_found() -> NotFound:
    """Return the error for a repository that there is not."""
    return NotFound(
        "The registry has no such repository.",
        code="repository-not-found",
        errors=[Fault("unknown-repository", "It does not exist.", parameter="repository")],
    )
