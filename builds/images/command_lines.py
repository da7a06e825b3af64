"""Which ``docker`` program to build with, and whether it can use BuildKit.

Asking for versions does not tell: a client before 23 has BuildKit built in, a later one needs a
plug-in that may be missing or broken, and the engine has its own say. A tiny build does tell.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.folders import scratch_folder
from controlplane.subprocesses import ProcessStartError, run_process

_PROBE_SECONDS = 60.0
_ROOM_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class DockerCommand:
    """A program and the builder it can use."""

    program: str
    buildkit: bool


def find_docker(name: str, env: Mapping[str, str]) -> tuple[DockerCommand, bool]:
    """Return the first program called ``name`` that builds with BuildKit, else the first of all.

    The second value says whether the answer is certain: it is not while no engine answers. Raises
    ``OSError`` when the temporary folder takes nothing, so that nothing can be found out.
    """
    programs = [name] if "/" in name else _on_path(name, env.get("PATH", os.defpath))
    for program in programs:
        if _has_buildkit(program, env):
            return DockerCommand(program, buildkit=True), True
    first = programs[0] if programs else name
    return DockerCommand(first, buildkit=False), _reaches_engine(first, env)


def _on_path(name: str, path: str) -> list[str]:
    by_file: dict[str, str] = {}
    for folder in path.split(os.pathsep):
        program = shutil.which(name, path=folder) if folder else None
        if program is not None:
            by_file.setdefault(os.path.realpath(program), program)
    return list(by_file.values())


def _has_buildkit(program: str, env: Mapping[str, str]) -> bool:
    """Build nothing to speak of into a folder: the classic builder cannot, and no image stays."""
    with scratch_folder("probe") as place:
        context = place / "context"
        context.mkdir()
        (context / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
        result = place / "result"
        argv = [program, "build", "--output", f"type=local,dest={result}", str(context)]
        if _succeeds(argv, {**env, "DOCKER_BUILDKIT": "1"}) and (result / "Dockerfile").exists():
            return True
        # The same fails on a full disk, which says nothing of the builder and raises here.
        (place / "room").write_bytes(bytes(_ROOM_BYTES))
        return False


def _reaches_engine(program: str, env: Mapping[str, str]) -> bool:
    return _succeeds([program, "version", "--format", "{{.Server.Version}}"], env)


def _succeeds(argv: list[str], env: Mapping[str, str]) -> bool:
    try:
        return run_process(argv, env=env, timeout=_PROBE_SECONDS).ok
    except ProcessStartError:
        return False
