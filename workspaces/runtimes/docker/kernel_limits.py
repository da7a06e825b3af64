"""Limits of the kernel that count by uid, whatever container a process is in.

The users of all workspaces have one uid, so one workspace could take all that there is from the
others. What is counted lies in the kernel's memory, and the kernel charges that to the workspace,
so the limits by uid are lifted: each workspace then meets its own limit of memory first.
"""

from __future__ import annotations

from docker.errors import ContainerError

from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.engine_api import Engine
from workspaces.runtimes.docker.engine_api.own_containers import printed_by

PURPOSE = "limits"
WANTED = {
    "inotify/max_user_instances": 2**31 - 1,
    "inotify/max_user_watches": 2**31 - 1,
    "pipe-user-pages-soft": 0,
}
"""By their path below ``/proc/sys/fs``; 0 means none there."""

_PROGRAM = """
set -u
for each in $WANTED; do
    file=/limits/${each%%=*}
    [ "$(cat "$file")" = "${each#*=}" ] || echo "${each#*=}" > "$file" || :
    printf '%s=%s\\n' "${each%%=*}" "$(cat "$file")"
done
"""


def lift(engine: Engine, image: str) -> str:
    """Lift them on the engine's machine; return in words which could not be, empty for none.

    ``image`` has a shell. Raises ``LaunchError`` when the engine cannot run it at all.
    """
    if not engine.has_image(image):
        engine.client.images.pull(image)
    try:
        output = printed_by(
            engine,
            image,
            ["-c", _PROGRAM],
            purpose=PURPOSE,
            entrypoint="/bin/sh",
            user="0:0",
            environment={"WANTED": " ".join(f"{name}={value}" for name, value in WANTED.items())},
            volumes={"/proc/sys/fs": {"bind": "/limits", "mode": "rw"}},
            network_mode="none",
            userns_mode="host",
            security_opt=["no-new-privileges"],
            read_only=True,
            mem_limit="64m",
            pids_limit=32,
        )
    except ContainerError as error:
        raise LaunchError(
            "adapter-unavailable", f"The limits could not be read: {error}"
        ) from error
    found = dict(line.split("=", 1) for line in output.decode("ascii", "replace").splitlines())
    return ", ".join(
        f"fs.{name.replace('/', '.')} is {found.get(name, 'unknown')}"
        for name, value in WANTED.items()
        if found.get(name) != str(value)
    )
