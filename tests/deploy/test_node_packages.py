"""Programs of npm are installed as locked, once, and again when the lock changes."""

from __future__ import annotations

import json

import pytest

from deploy.services.errors import SetupError
from deploy.up.layout import Layout
from deploy.up.node.node_packages import ensure_node_packages, node_programs
from deploy.up.progress import Progress


def lock(layout: Layout, program: str) -> None:
    """Lock a package of the checkout itself, with a program of this name."""
    folder = layout.checkout / "deploy" / "node"
    folder.mkdir(exist_ok=True)
    source = layout.data / "node" / "source"
    source.mkdir(parents=True, exist_ok=True)
    tool = {"name": "tool", "version": "1.0.0", "bin": {program: "tool.js"}}
    (source / "package.json").write_text(json.dumps(tool))
    (source / "tool.js").write_text("#!/usr/bin/env node\n")
    wanted = {"dependencies": {"tool": "file:source"}}
    (folder / "package.json").write_text(json.dumps(wanted))
    packages = {
        "": wanted,
        "node_modules/tool": {"resolved": "source", "link": True},
        "source": {**tool, "name": "tool"},
    }
    locked = {"lockfileVersion": 3, "requires": True, "packages": packages}
    (folder / "package-lock.json").write_text(json.dumps(locked))


def test_an_installation_that_is_as_locked_is_left_alone(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock(layout, "first")
    ensure_node_packages(layout, Progress())
    assert (node_programs(layout) / "first").exists()
    with monkeypatch.context() as without_npm:
        without_npm.setenv("PATH", "/nonexistent")
        ensure_node_packages(layout, Progress())
    lock(layout, "second")
    ensure_node_packages(layout, Progress())
    assert (node_programs(layout) / "second").exists()
    assert not (node_programs(layout) / "first").exists()


def test_an_installation_that_failed_is_made_again(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock(layout, "first")
    with monkeypatch.context() as without_npm:
        without_npm.setenv("PATH", "/nonexistent")
        with pytest.raises(SetupError, match="npm ci"):
            ensure_node_packages(layout, Progress())
    ensure_node_packages(layout, Progress())
    assert (node_programs(layout) / "first").exists()
