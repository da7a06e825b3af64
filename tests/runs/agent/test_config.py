"""`boot.json`: everything that is not exactly right is refused, with the member's name."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from runs.agent.config import ConfigError, load, parse

VALID: dict[str, Any] = {
    "version": 1,
    "runId": "run",
    "workspaceId": "workspace",
    "attemptId": "attempt",
    "user": "workspace",
    "home": "/home/workspace",
    "shell": "/bin/bash",
    "sudo": True,
    "workspaceRoot": "/workspace",
    "workingDirectory": "/workspace/project",
    "env": {"NAME": "value", "_UNDERSCORED9": ""},
    "dotfiles": {
        "path": "/usr/share/svc/dotfiles",
        "manager": "auto",
        "target": "home",
        "bootstrap": True,
        "bootstrapCommand": None,
    },
    "setup": [{"name": "one", "run": "true", "shell": "sh", "workingDirectory": None}],
    "startup": [{"name": "two", "run": "true", "shell": "bash", "workingDirectory": "below"}],
    "foreground": {"kind": "harness", "command": ["opencode"]},
    "limits": {"stepSeconds": 1800, "graceSeconds": 10, "tailBytes": 8192},
    "record": {
        "policy": "block",
        "input": "masked",
        "spoolBytes": 268435456,
        "segmentBytes": 8388608,
        "restart": False,
    },
    "secrets": ["s3cret"],
}

_ABSENT = object()


def changed(pointer: str, value: object) -> dict[str, Any]:
    config = copy.deepcopy(VALID)
    *path, last = pointer.strip("/").split("/")
    place: Any = config
    for name in path:
        place = place[int(name)] if isinstance(place, list) else place[name]
    if value is _ABSENT:
        del place[last]
    else:
        place[last] = value
    return config


def test_a_valid_configuration_is_parsed_into_values() -> None:
    config = parse(VALID)
    assert config.run_id == "run"
    assert config.env == {"NAME": "value", "_UNDERSCORED9": ""}
    assert config.startup[0].working_directory == "below"
    assert config.foreground.command == ("opencode",)
    assert config.secrets == (b"s3cret",)


def test_a_foreground_may_be_a_command() -> None:
    foreground = {"kind": "command", "run": "sleep 1", "shell": "sh", "workingDirectory": None}
    parsed = parse(changed("/foreground", foreground)).foreground
    assert parsed.step is not None
    assert parsed.step.run == "sleep 1"


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        *[(f"/{name}", _ABSENT) for name in VALID],
        ("/version", 2),
        ("/version", True),
        ("/version", "1"),
        ("/unknown", 1),
        ("/runId", ""),
        ("/runId", 7),
        ("/user", "a\0b"),
        ("/user", "\ud800"),
        ("/home", "relative"),
        ("/workingDirectory", None),
        ("/sudo", 1),
        ("/env", []),
        ("/env/NAME", 1),
        ("/env/NAME", "a\0b"),
        ("/env/SVC_RUN_ID", "mine"),
        ("/env/SVC_ANYTHING", ""),
        ("/env/1NAME", ""),
        ("/env/A=B", ""),
        ("/env/NÄME", ""),
        ("/dotfiles", []),
        ("/dotfiles/path", "relative"),
        ("/dotfiles/manager", "yadm"),
        ("/dotfiles/target", "root"),
        ("/dotfiles/bootstrap", None),
        ("/dotfiles/bootstrapCommand", ""),
        ("/dotfiles/extra", 1),
        ("/setup", {}),
        ("/setup/0/shell", "fish"),
        ("/setup/0/run", ""),
        ("/setup/0/workingDirectory", 1),
        ("/setup/0/extra", 1),
        ("/foreground/kind", "service"),
        ("/foreground/command", "opencode"),
        ("/foreground/command", [""]),
        ("/foreground/run", "true"),
        ("/limits/stepSeconds", -1),
        ("/limits/stepSeconds", True),
        ("/limits/stepSeconds", "1"),
        ("/limits/graceSeconds", 1e300),
        ("/limits/tailBytes", 1.5),
        ("/limits/tailBytes", 10**9),
        ("/record", None),
        ("/record/policy", "wait"),
        ("/record/input", True),
        ("/record/spoolBytes", -1),
        ("/record/segmentBytes", "8"),
        ("/record/restart", 0),
        ("/record/extra", 1),
        ("/secrets", ["a", ""]),
        ("/secrets", [None]),
    ],
)
def test_a_wrong_member_is_refused_by_its_name(pointer: str, value: object) -> None:
    with pytest.raises(ConfigError, match=pointer.replace("\\", "")):
        parse(changed(pointer, value))


@pytest.mark.parametrize("value", [None, [], "text", 1])
def test_only_an_object_is_a_configuration(value: object) -> None:
    with pytest.raises(ConfigError, match="must be an object"):
        parse(value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"[" * 200_000, b"{}" + b" " * (4 * 1024 * 1024)]
)
def test_a_file_that_is_not_small_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "boot.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"boot\.json"):
        load(str(path))


def test_a_link_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text(json.dumps(VALID))
    (tmp_path / "real.json").chmod(0o600)
    (tmp_path / "boot.json").symlink_to("real.json")
    with pytest.raises(ConfigError, match="cannot read"):
        load(str(tmp_path / "boot.json"))


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a regular file"):
        load(str(tmp_path))
