"""Prepares the image for its user: login shell, sudo, and the workspace's directories.

Runs inside the image (Python 3.8 or newer), as root, when everything is installed.
"""

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

SETTINGS = Path("/usr/share/svc/install/workspace.json")
SUDOERS = Path("/etc/sudoers.d/svc")


def main() -> None:
    """Carry out ``workspace.json``, which the planner wrote."""
    settings = json.loads(SETTINGS.read_text(encoding="utf-8"))
    user, uid, gid = settings["user"], settings["uid"], settings["gid"]

    if not os.access(settings["shell"], os.X_OK):
        raise SystemExit(f"the login shell {settings['shell']} is not installed")
    subprocess.run(["usermod", "--shell", settings["shell"], user], check=True)

    sudo = shutil.which("sudo")
    if settings["sudo"]:
        SUDOERS.write_text(f"{user} ALL=(ALL:ALL) NOPASSWD: ALL\n", encoding="utf-8")
        SUDOERS.chmod(0o440)
    elif sudo is not None:
        # The program is part of the layer that all images share; without this bit it is inert.
        program = Path(sudo)
        program.chmod(stat.S_IMODE(program.stat().st_mode) & ~stat.S_ISUID)

    root, directory = settings["workspaceRoot"], Path("/")
    for segment in settings["workingDirectory"].split("/")[1:]:
        directory /= segment
        directory.mkdir(mode=0o755, exist_ok=True)
        if f"{directory}/".startswith(f"{root}/"):
            os.chown(directory, uid, gid)


main()
