"""Where a path of a workspace leads once its links are followed."""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath

from controlplane_client import Problem
from controlplane_client.models import FileInfo
from controlplane_openai_agents.failures import NO_FILE

_MOST_LINKS = 40
_HIDDEN = frozenset({"file-permission-denied"})


async def followed(
    stat: Callable[[str], Awaitable[FileInfo]],
    path: PurePosixPath,
    below: PurePosixPath | None = None,
) -> PurePosixPath:
    """Return an absolute path without links; what does not exist is left as it is.

    A path that is not absolute begins ``below`` a folder that is reached without links.

    The SDK installs a shell script for this; here it is asked of the service, so that the record
    has only what the agent did. Raises ``Problem`` for what cannot be looked at.
    """
    rest = [part for part in path.parts if part != "/"]
    found, links = below or PurePosixPath("/"), 0
    while rest:
        part = rest.pop(0)
        if part == "..":
            found = found.parent
            continue
        here = found / part
        try:
            info = await stat(str(here))
        except Problem as problem:
            if problem.code in NO_FILE or problem.code in _HIDDEN:
                return _plain(here, rest)
            raise
        if info.type != "symlink" or info.target is None:
            found = here
            continue
        links += 1
        if links > _MOST_LINKS:
            return _plain(here, rest)
        target = PurePosixPath(info.target)
        if target.is_absolute():
            found = PurePosixPath("/")
        rest = [part for part in target.parts if part != "/"] + rest
    return found


def _plain(path: PurePosixPath, rest: list[str]) -> PurePosixPath:
    return PurePosixPath(posixpath.normpath(path.joinpath(*rest)))
