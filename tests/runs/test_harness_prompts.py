"""Each harness's real program works on a prompt: it runs what its model asks for, and finishes.

The model is a local server. Nobody answers questions, the folder is no git repository, and the
program runs as a user of its own, as in a workspace.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from runs.commands import harness_command
from tests.runs.model_api import ModelApi, model_api, names_of_tools
from tests.support.waiting import LONG_WAIT
from workspaces.harnesses import HARNESSES, REFUSED
from workspaces.models import Attempt

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(900)]

DOCKER_HOST = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
BASE_IMAGE = os.environ.get("SVC_BASE_IMAGE_DEBIAN", "svc-base/debian:bookworm")

USER = "nobody"


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """The pinned packages of all harnesses, installed once; below / so that others may read it."""
    folder = Path(tempfile.mkdtemp(prefix="svc-harnesses-"))
    folder.chmod(0o755)
    packages = [package for harness in HARNESSES.values() for package in harness.npm_packages]
    command = ["npm", "install", "--no-fund", "--no-audit", "--silent", *packages]
    subprocess.run(command, cwd=folder, check=True, timeout=600)
    yield folder / "node_modules" / ".bin"
    shutil.rmtree(folder)


@pytest.fixture
def home() -> Iterator[Path]:
    """A home that belongs to the user, with an empty folder to work in."""
    folder = Path(tempfile.mkdtemp(prefix="svc-home-"))
    (folder / "repo").mkdir()
    yield folder
    shutil.rmtree(folder)


def configure(harness: str, api: ModelApi, home: Path) -> dict[str, str]:
    """Write what a person would to use another model API; return the environment for it."""
    if harness == "claude-code":
        return {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "key"}
    if harness == "codex":
        (home / ".codex").mkdir()
        (home / ".codex" / "config.toml").write_text('model = "gpt-5-codex"\n')
        return {"OPENAI_BASE_URL": f"{api.url}/v1", "CODEX_API_KEY": "key"}
    options = {"baseURL": f"{api.url}/v1", "apiKey": "key"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"fake": {}}}
    (home / ".config" / "opencode").mkdir(parents=True)
    path = home / ".config" / "opencode" / "opencode.json"
    path.write_text(json.dumps({"provider": {"fake": provider}, "model": "fake/fake"}))
    return {}


def prompted(
    harness: str, programs: Path, home: Path, api: ModelApi, attempt: Attempt | None
) -> subprocess.CompletedProcess[str]:
    """Give a harness a prompt in the folder ``repo`` of a user's home."""
    environment = {
        "HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        **configure(harness, api, home),
    }
    account = pwd.getpwnam(USER)
    for path in [home, *home.rglob("*")]:
        os.chown(path, account.pw_uid, account.pw_gid)
    return subprocess.run(
        harness_command(harness, "Write file.txt.", attempt),
        cwd=home / "repo",
        env=environment,
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


HARNESS_IDS = [name for name in HARNESSES if name != "shell"]
COMMAND = "echo changed > file.txt && id -un > who.txt"


@pytest.mark.parametrize("harness", HARNESS_IDS)
def test_a_prompt_edits_a_file_runs_a_command_and_finishes(
    harness: str, programs: Path, home: Path
) -> None:
    with model_api(COMMAND) as api:
        done = prompted(harness, programs, home, api, None)
    said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, said
    assert (home / "repo" / "file.txt").exists(), said
    assert (home / "repo" / "file.txt").read_text() == "changed\n"
    assert (home / "repo" / "who.txt").read_text() == f"{USER}\n"
    assert "Finished." in done.stdout


@pytest.mark.parametrize("harness", HARNESS_IDS)
def test_a_prompt_that_may_only_read_changes_nothing_and_finishes(
    harness: str, programs: Path, home: Path
) -> None:
    attempt = Attempt(spec={"harness": {"id": harness, "rights": "read-only"}})
    with model_api(COMMAND) as api:
        done = prompted(harness, programs, home, api, attempt)
        offered = {name for request in api.asked for name in names_of_tools(request)}
    said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, said
    assert list((home / "repo").iterdir()) == [], said
    assert "Finished." in done.stdout
    # codex reads with commands, in a sandbox that keeps them from writing; others have tools.
    assert offered & {"exec_command", "Read", "read"}, offered
    assert not offered & {"Bash", "Edit", "Write", "bash", "edit", "write"}, offered


def test_a_prompt_that_codex_cannot_restrict_is_refused_without_asking_its_model(
    programs: Path,
) -> None:
    (native,) = programs.parent.glob("@openai/codex-linux-*/vendor/*/bin/codex")
    attempt = Attempt(spec={"harness": {"id": "codex", "rights": "read-only"}})
    folder = native.parents[1]
    client = docker.DockerClient(base_url=DOCKER_HOST, timeout=round(LONG_WAIT))
    try:
        # As in a workspace: no user namespaces.
        container = client.containers.create(
            BASE_IMAGE,
            harness_command("codex", "Write file.txt.", attempt),
            user="1000:1000",
            working_dir="/tmp",
            network_mode="none",
            environment={"HOME": "/tmp", "PATH": f"{native.parent}:/usr/bin:/bin"},
            volumes=[f"{folder}:{folder}:ro"],
        )
        try:
            container.start()
            code = container.wait(timeout=LONG_WAIT)["StatusCode"]
            said = container.logs().decode()
        finally:
            container.remove(force=True, v=True)
    finally:
        client.close()
    assert code == REFUSED, said
    assert "codex cannot be restricted to reading here" in said


def test_a_restricted_codex_that_is_not_installed_is_not_said_to_have_refused() -> None:
    attempt = Attempt(spec={"harness": {"id": "codex", "rights": "read-only"}})
    done = subprocess.run(
        harness_command("codex", "Write file.txt.", attempt),
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 127, done.stderr
