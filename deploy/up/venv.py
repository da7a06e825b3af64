"""The virtual environment, made once and brought up to date when the locked requirements change."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from deploy.up.layout import Layout
from deploy.up.logged import run_logged
from deploy.up.progress import Progress

PRODUCTION = "requirements.txt"
DEVELOPMENT = "requirements-dev.txt"


def ensure_venv(layout: Layout, progress: Progress, *, development: bool = False) -> None:
    """Make `.venv` hold exactly what the lock names. Costs nothing when it does already.

    The development lock contains the production one, so either satisfies a plain `make up`.
    """
    wanted = DEVELOPMENT if development else PRODUCTION
    usable = (DEVELOPMENT,) if development else (PRODUCTION, DEVELOPMENT)
    if any(is_current(layout, name) for name in usable):
        return
    if not development and _stamp(layout, DEVELOPMENT).exists():
        # Taking the test tools away again would make the next `make test` install them anew.
        wanted = DEVELOPMENT
    with progress.step("Python packages") as step:
        if not _works(layout):
            step.now("making .venv")
            shutil.rmtree(layout.venv, ignore_errors=True)
            run_logged(
                (sys.executable, "-m", "venv", layout.venv), log=layout.setup_log, seconds=120
            )
        step.now(f"installing deploy/{wanted}")
        pip = (layout.venv / "bin/python", "-m", "pip", "install", "--disable-pip-version-check")
        lock = layout.checkout / "deploy" / wanted
        run_logged((*pip, "-q", "-r", lock), log=layout.setup_log, seconds=1800)
        _stamp(layout, wanted).write_text(fingerprint(layout, wanted))
        step.done(f"installed from deploy/{wanted}")


def is_current(layout: Layout, name: str) -> bool:
    """True when the environment was filled from this lock as it reads now, in this place."""
    try:
        stamped = _stamp(layout, name).read_text()
    except OSError:
        return False
    return stamped == fingerprint(layout, name)


def fingerprint(layout: Layout, name: str) -> str:
    """What the environment depends on: the lock, the interpreter, and where the checkout lies."""
    lock = (layout.checkout / "deploy" / name).read_bytes()
    place = f"{sys.version}\0{sys.base_prefix}\0{layout.venv}\0".encode()
    return hashlib.sha256(place + lock).hexdigest()


def _stamp(layout: Layout, name: str) -> Path:
    return layout.venv / f".{name}.sha256"


def _works(layout: Layout) -> bool:
    """True when the environment's interpreter is there, is ours, and can install packages."""
    question = "import pip, sys; print(sys.version, sys.prefix, sep='|')"
    try:
        done = subprocess.run(
            [layout.venv / "bin/python", "-c", question],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except OSError:
        return False
    return done.stdout.strip() == f"{sys.version}|{layout.venv}"
