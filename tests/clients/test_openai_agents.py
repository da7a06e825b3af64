"""The sandbox client for OpenAI's Agents SDK, with real releases of it and a scripted model."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.conftest import PREVIEW_TOKEN
from tests.clients.places import CLIENTS, python_path
from tests.conftest import OWNER
from tests.stack.gateway_process import ApiProcess
from tests.stack.preview_process import PreviewProcess

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]

PROJECT = CLIENTS / "openai_agents"
FIRST, LAST = "0.22.0", "0.24.0"
TERMINAL = "suite/test_sandbox.py::test_a_terminal_is_typed_into_until_its_program_ends"
SUITES = {FIRST: ("suite/test_agents.py", TERMINAL), LAST: ("suite",)}
"""With the first release the tools of agents, with the last one everything."""
UNTESTED = "0.21.1"


def done(python: Path, *words: str, code: int = 0, **changes: str) -> str:
    """Run Python where the client lies, and return what it printed."""
    kept = {name: each for name, each in os.environ.items() if not name.startswith("PY")}
    ended = subprocess.run(
        [str(python), *words],
        cwd=PROJECT,
        # What it compiles is kept for the next call, and out of the checkout.
        env={**kept, "PYTHONPYCACHEPREFIX": str(python.parents[1] / "compiled"), **changes},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == code, ended.stdout
    return ended.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with what the client is tested with, but for the SDK."""
    folder = tmp_path_factory.mktemp("agents") / "venv"
    venv.create(folder)
    python = folder / "bin" / "python"
    install(python, "-r", str(PROJECT / "requirements-test.txt"))
    return python


def install(python: Path, *words: str) -> None:
    """Install packages, without what they need."""
    options = ("-q", "--disable-pip-version-check", "--no-compile", "--no-deps")
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", *options, *words)
    ended = subprocess.run(pip, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def previews(
    api_process: ApiProcess, preview_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """The gateway that links to ports lead to."""
    gateway = PreviewProcess(
        tmp_path_factory.mktemp("previews") / "gateway.log",
        api=api_process.url,
        WORKSPACE_SSH_GATEWAY_TOKEN=PREVIEW_TOKEN,
        SVC_PREVIEW_PORT=str(preview_port),
    )
    yield
    gateway.stop()


def test_its_types_are_those_of_the_sdk(python: Path) -> None:
    install(python, f"openai-agents=={LAST}")
    cache = python.parents[1] / "types"
    done(python, "-m", "mypy", f"--cache-dir={cache}", "controlplane_openai_agents")


@pytest.mark.parametrize("release", SUITES)
def test_an_agent_edits_tests_and_serves_a_repository_in_a_workspace(
    release: str, python: Path, api_process: ApiProcess, previews: None
) -> None:
    install(python, f"openai-agents=={release}")
    told = done(
        python,
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITES[release]),
        PYTHONPATH=python_path(),
        SVC_BASE_URL=api_process.url,
        SVC_OWNER_USER_ID=OWNER,
    )
    assert " passed" in told
    assert "skipped" not in told


def test_a_release_that_was_not_tested_is_refused_with_those_that_were(
    python: Path,
) -> None:
    install(python, f"openai-agents=={UNTESTED}")
    told = done(python, "-c", "import controlplane_openai_agents", code=1, PYTHONPATH=python_path())
    assert told.splitlines()[-1] == (
        "controlplane_openai_agents.releases.UntestedRelease: openai-agents is 0.21.1; this "
        "release of controlplane-openai-agents works with 0.22.0 to 0.24.0: "
        "pip install 'openai-agents>=0.22.0,<=0.24.0'"
    )
