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

import pytest

from runs.commands import harness_command
from tests.runs.model_api import ModelApi, model_api
from workspaces.harnesses import HARNESSES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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


@pytest.mark.parametrize("harness", [name for name in HARNESSES if name != "shell"])
def test_a_prompt_edits_a_file_runs_a_command_and_finishes(
    harness: str, programs: Path, home: Path
) -> None:
    with model_api("echo changed > file.txt && id -un > who.txt") as api:
        environment = {
            "HOME": str(home),
            "PATH": f"{programs}:{os.environ['PATH']}",
            **configure(harness, api, home),
        }
        account = pwd.getpwnam(USER)
        for path in [home, *home.rglob("*")]:
            os.chown(path, account.pw_uid, account.pw_gid)
        done = subprocess.run(
            harness_command(harness, "Write file.txt.", None),
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
    said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, said
    assert (home / "repo" / "file.txt").exists(), said
    assert (home / "repo" / "file.txt").read_text() == "changed\n"
    assert (home / "repo" / "who.txt").read_text() == f"{USER}\n"
    assert "Finished." in done.stdout
