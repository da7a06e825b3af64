"""Blueprints for the tests of the parser: a full one, changes to it, and the faults they have."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

import pytest

from controlplane.errors import ValidationFailed
from workspaces.blueprint import Blueprint

FULL: dict[str, Any] = {
    "version": "1",
    "sources": {
        "workspace": {"kind": "git", "provider": "github", "url": "https://example.org/o/app.git"},
        "inputs": [
            {
                "id": "dots",
                "purpose": "dotfiles",
                "url": "file:///srv/dots.git",
                "ref": "v1",
                "mountPath": "/mnt/dots",
            }
        ],
    },
    "harness": {
        "id": "custom",
        "profile": "p",
        "install": "set -x\n\ttrue",
        "command": ["mine", "--a b"],
    },
    "access": {"ssh": {"enabled": True, "listenPort": 2200, "authorizedKeysRef": "k"}},
    "tooling": {"packages": [{"id": "jq"}, {"id": "g++", "version": "4:12.2.0-3~x_y"}]},
    "customization": {
        "defaultShell": "fish",
        "dotfilesManager": "stow",
        "dotfilesTarget": "config",
        "applyDotfiles": False,
        "dotfilesBootstrap": False,
        "dotfilesBootstrapCommand": "make all",
        "user": "root",
        "sudo": False,
    },
    "lifecycle": {
        "setup": [{"id": "one", "run": "echo 'a'\necho b", "shell": "sh"}],
        "startup": {
            "steps": [{"run": "true", "workingDirectory": "sub/dir"}],
            "foreground": {"kind": "command", "run": "sleep 9", "workingDirectory": "/tmp"},
        },
    },
    "runtime": {
        "env": {"A": "", "B_1": " kept \n\tas is ü "},
        "credentialRefs": [],
        "workspaceRoot": "/root/w",
        "workingDirectory": "/root/w/x",
        "persistence": "persistent",
        "ociRuntime": "runsc",
        "network": {"outbound": False},
        "resources": {"memoryMb": 512, "cpus": 1.5, "pids": 100},
    },
    "target": {
        "os": {"family": "alpine", "mode": "require"},
        "runtime": {"family": "docker", "mode": "require"},
    },
    "credentials": {
        "profileId": "p",
        "claude": "c",
        "codex": "x",
        "github": "g",
        "generic": ["v"],
    },
}

MINIMAL: dict[str, Any] = {"harness": {"id": "shell"}}


def with_value(path: str, value: object) -> dict[str, Any]:
    """Return the full blueprint with another value at a path of names and positions."""
    document = copy.deepcopy(FULL)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    place: Any = document
    for part in parents:
        place = place[part]
    place[last] = value
    return document


def faults_of(data: object) -> dict[str, str]:
    """Return the code of each fault of a refused document by its pointer; all can be answered."""
    with pytest.raises(ValidationFailed) as caught:
        Blueprint.parse(data)
    for fault in caught.value.errors:
        json.dumps(fault.to_wire(), ensure_ascii=False).encode()
    return {fault.pointer: fault.code for fault in caught.value.errors}


def details_of(data: object) -> str:
    """Return what a refused document's faults say, one per line."""
    with pytest.raises(ValidationFailed) as caught:
        Blueprint.parse(data)
    return "\n".join(fault.detail for fault in caught.value.errors)


def members(value: object) -> Iterable[tuple[str | int, Any]]:
    """Return the entries of an object or an array with their names or positions."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value if isinstance(value, list) else ())


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the path of every value in a document, its own first."""
    return [path] + [
        deeper for key, entry in members(value) for deeper in places(entry, (*path, key))
    ]


def string_places(value: object, path: str = "") -> list[str]:
    """Return the path of every string in a document."""
    if isinstance(value, str):
        return [path]
    return [
        place for key, entry in members(value) for place in string_places(entry, f"{path}/{key}")
    ]
