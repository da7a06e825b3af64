"""Workspaces with accounts, outside of a container: what is delivered, and by whom."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from tests.runs.agent.booted import PYTHON, USER, Boot, Workspace, eventually

CLAUDE = "sk-ant-oat01-claude-canary-0123456789"
GITHUB = "gho_githubcanary0123456789012345678901"
GENERIC = "generic/canary+value=="
ACCESS, REFRESH = "access-canary-0123456789-abcdef", "refresh-canary-0123456789-abcdef"


def codex(access: str = ACCESS, refresh: str = REFRESH, at: str = "2026-01-01T00:00:00Z") -> str:
    """What the provider's tool keeps in its file."""
    tokens = {"access_token": access, "refresh_token": refresh, "account_id": "holder-1"}
    return json.dumps({"OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": at}, indent=2)


def account(number: int, provider: str, secret: str, name: str = "default") -> dict[str, str]:
    """One account of a document."""
    return {"id": identity(number), "provider": provider, "name": name, "secret": secret}


def identity(number: int) -> str:
    """The id of the account with this number."""
    return f"00000000-0000-7000-8000-{number:012d}"


def document(*accounts: dict[str, str]) -> bytes:
    """What is delivered."""
    return json.dumps({"version": 1, "accounts": accounts}).encode()


ALL = (
    account(1, "claude", CLAUDE),
    account(2, "codex", codex()),
    account(3, "github", GITHUB),
    account(4, "generic", GENERIC, "SERVICE_LOGIN"),
)


_KILLED = """
import os, sys
archive, left = sys.argv[1], [int(sys.argv[2])]
sys.path.insert(0, archive)
sys.argv = [archive, *sys.argv[3:]]

def killing(function):
    def call(*arguments, **members):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), 9)
        return function(*arguments, **members)
    return call

names = "mkdir open write fchmod fchown rename symlink unlink rmdir close fork"
for name in names.split():
    setattr(os, name, killing(getattr(os, name)))
from agent.__main__ import main
sys.exit(main())
"""
"""The agent, which kills itself before the n-th of its calls that change something."""


class Credentialed:
    """A workspace that waits for credentials, and the control plane that brings them."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.place = workspace.root / "memory"
        self.place.mkdir(mode=0o711)
        self.current = self.place / "credentials"
        self.auth = workspace.home / ".codex" / "auth.json"

    def boot(self, **members: Any) -> Boot:
        """Boot it; it does not get far without credentials."""
        return self.workspace.boot(credentials=str(self.place), **members)

    def call(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Call the agent as the control plane does."""
        argv = [PYTHON, "-I", str(self.workspace.archive), "credentials", *arguments]
        argv += ["--config", str(self.workspace.config_path)]
        return subprocess.run(argv, input=stdin, capture_output=True, check=False)

    def deliver(self, *accounts: dict[str, str]) -> dict[str, Any]:
        """Deliver these accounts."""
        ended = self.call("deliver", stdin=document(*accounts))
        assert ended.returncode == 0, ended.stderr
        told: dict[str, Any] = json.loads(ended.stdout)
        return told

    def collect(self) -> list[dict[str, str]]:
        """What the workspace has of renewable accounts."""
        ended = self.call("collect")
        assert ended.returncode == 0, ended.stderr
        found: list[dict[str, str]] = json.loads(ended.stdout)
        return found

    def withdraw(self, *numbers: int) -> None:
        """Remove accounts."""
        ids = json.dumps({"version": 1, "ids": list(map(identity, numbers))}).encode()
        assert self.call("withdraw", stdin=ids).returncode == 0

    def files(self) -> dict[str, str]:
        """The present set."""
        root = self.current.resolve()
        found = [path for path in root.rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): path.read_text() for path in found}

    def killed_at(self, call: int, delivery: bytes) -> bool:
        """Deliver, but kill the agent before its n-th change; whether it had come to its end."""
        argv = [PYTHON, "-I", "-c", _KILLED, str(self.workspace.archive), str(call)]
        argv += ["credentials", "deliver", "--config", str(self.workspace.config_path)]
        ended = subprocess.run(argv, input=delivery, capture_output=True, check=False)
        assert ended.returncode in (0, -9), ended.stderr
        return ended.returncode == 0

    def forget(self) -> None:
        """Lose the memory, as a restart of a container does."""
        shutil.rmtree(self.place)
        self.place.mkdir(mode=0o711)

    def until(self, phase: str) -> None:
        """Wait until the boot has come to this phase."""
        path = self.workspace.state / "status.json"
        eventually(lambda: path.exists() and self.workspace.status()["phase"] == phase)

    def environment(self, name: str = "environment") -> dict[str, str]:
        """What a step wrote with `env -0`."""
        content = (self.workspace.directory / name).read_text()
        return dict(entry.split("=", 1) for entry in content.rstrip("\0").split("\0"))

    def as_user(self, run: str, **env: str) -> subprocess.CompletedProcess[bytes]:
        """What the user would do."""
        user = USER if os.geteuid() == 0 else None
        return subprocess.run(
            ["/bin/sh", "-c", run],
            capture_output=True,
            check=False,
            user=user,
            cwd="/",
            env={"PATH": os.environ["PATH"], "HOME": str(self.workspace.home), **env},
        )
