"""Programs of npm that checks and tests run, installed as locked in `deploy/node`."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from deploy.up.layout import Layout
from deploy.up.logged import run_logged
from deploy.up.progress import Progress

_FILES = ("package.json", "package-lock.json")


def node_programs(layout: Layout) -> Path:
    """The folder of the programs, for `PATH`; it is there once they have been installed."""
    return layout.data / "node" / "node_modules" / ".bin"


def ensure_node_packages(layout: Layout, progress: Progress) -> None:
    """Install what the lock names; costs nothing when that is there. Needs npm, and `only_one`.

    Scripts of packages do not run: these programs need none, and some report to their makers.
    Raises SetupError when npm fails.
    """
    locked = layout.checkout / "deploy" / "node"
    folder = layout.data / "node"
    stamp = folder / ".installed.sha256"
    wanted = hashlib.sha256(b"".join((locked / name).read_bytes() for name in _FILES)).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    with progress.step("npm packages") as step:
        step.now("installing deploy/node")
        folder.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        for name in _FILES:
            shutil.copyfile(locked / name, folder / name)
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")
        run_logged(("npm", "ci", *quiet), log=layout.setup_log, seconds=900, directory=folder)
        stamp.write_text(wanted)
        step.done("installed from deploy/node")
