"""Generators make clients from ``openapi.json`` without a warning, and these do the main job."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.up.layout import Layout
from deploy.up.node.node_packages import ensure_node_packages, node_programs
from deploy.up.progress import Progress
from deploy.up.setup import only_one
from tests.architecture.sources import ROOT
from tests.clients.places import CLIENTS
from tests.conftest import OWNER
from tests.stack.gateway_process import ApiProcess

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
DESCRIPTION = ROOT / "openapi.json"


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder of the programs of npm, installed as ``make lint`` installs them."""
    layout, progress = Layout.of(ROOT, os.environ), Progress(io.StringIO())
    with only_one(layout, progress):
        ensure_node_packages(layout, progress)
    return node_programs(layout)


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    """Run a program, which has to succeed, and return all that it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def check_main_job(told: dict[str, Any]) -> None:
    """The workspace became ready, the command ended, its record tells it, and errors are typed."""
    assert told["status"] == "ready"
    assert (told["stdout"], told["exitCode"]) == ("42\n", 3)
    assert {"processStarted", "ioChunk", "processExited"} <= set(told["kinds"])
    assert told["remaining"] == "deleted"
    assert told["absent"] == "workspace-not-found"


def test_the_client_of_openapi_python_client_does_the_main_job(
    api_process: ApiProcess, tmp_path: Path
) -> None:
    made = tmp_path / "generated_client"
    settings = CLIENTS / "openapi-python-client.yaml"
    # The generator formats what it has made with the ruff of its own environment.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    options = ("--meta", "none", "--config", settings, "--output-path", made, "--fail-on-warning")
    generator = (sys.executable, "-m", "openapi_python_client", "generate", "--path", DESCRIPTION)
    printed = run(*generator, *options, folder=tmp_path, PATH=path)
    assert printed.split() == ["Generating", str(made)]
    job = (sys.executable, HERE / "main_job.py", api_process.url, OWNER)
    told = json.loads(run(*job, folder=tmp_path, PYTHONPATH=str(tmp_path)))
    check_main_job(told)
    assert told["copied"] == "42\n"


def test_the_types_of_openapi_typescript_do_the_main_job(
    api_process: ApiProcess, programs: Path, tmp_path: Path
) -> None:
    for name in ("main_job.ts", "tsconfig.json"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node_modules").symlink_to(programs.parent)
    options = ("--default-non-nullable=false", "--output", "api.ts")
    printed = run(programs / "openapi-typescript", DESCRIPTION, *options, folder=tmp_path)
    assert "warn" not in printed.lower()
    run(programs / "tsc", "--project", ".", folder=tmp_path)
    job = ("node", "main_job.js", api_process.url, OWNER)
    check_main_job(json.loads(run(*job, folder=tmp_path)))
