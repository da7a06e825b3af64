"""``devcontainer.json`` as a blueprint: each member becomes something, or is named."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest

from controlplane_cli.devcontainers.conversion import Translated, translate
from controlplane_cli.devcontainers.finding import Fetched, of_folder, project_of, read
from controlplane_cli.devcontainers.jsonc import read_jsonc
from controlplane_cli.sources import source_of
from workspaces.blueprint import Blueprint


def translated(
    told: dict[str, Any], *, copied: bool = False, local_env: bool = False
) -> Translated:
    """Translate, and have the service read what comes out."""
    made = translate(told, harness="shell", folder_name="shop", copied=copied, local_env=local_env)
    Blueprint.parse(json.loads(json.dumps(made.blueprint)))
    return made


@dataclass(frozen=True)
class Case:
    """A file as projects have it, and what becomes of it."""

    text: str
    packages: list[str] = field(default_factory=list)
    blueprint: dict[str, Any] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    ports: dict[int, str] = field(default_factory=dict)
    warned: list[str] = field(default_factory=list)


CASES = {
    "the template for Node": Case(
        """// For format details, see https://aka.ms/devcontainer.json.
        {
            "name": "Node.js",
            /* Or use a Dockerfile or Docker Compose file. */
            "image": "mcr.microsoft.com/devcontainers/javascript-node:1-22-bookworm",
            // "features": {},
            "forwardPorts": [5000],
            "postCreateCommand": "npm install", // "yarn install" works too
            "customizations": {"vscode": {"extensions": ["dbaeumer.vscode-eslint",]}},
        }""",
        packages=["git", "curl", "nodejs"],
        blueprint={"target": {"os": {"family": "debian"}}},
        setup=["npm install"],
        ports={5000: ""},
        warned=["image", "customizations"],
    ),
    "Python with uv in an image of somebody else": Case(
        """{
            "image": "ghcr.io/astral-sh/uv:python3.12-bookworm",
            "features": {"ghcr.io/devcontainers/features/node:1": {"version": "22"}},
            "postCreateCommand": ["uv", "sync", "--extra", "all extras"],
            "remoteUser": "vscode"
        }""",
        packages=["nodejs"],
        blueprint={"target": {"os": {"family": "debian"}}},
        setup=["uv sync --extra 'all extras'"],
        warned=["image", "features", "remoteUser"],
    ),
    "many features on Ubuntu": Case(
        """{
            "image": "mcr.microsoft.com/devcontainers/base:ubuntu-24.04",
            "features": {
                "ghcr.io/devcontainers/features/go:1": {"version": "latest"},
                "ghcr.io/devcontainers/features/java:1": {"installMaven": true, "version": "21"},
                "ghcr.io/devcontainers/features/docker-in-docker:2": {"moby": true},
                "ghcr.io/devcontainers/features/common-utils:2": {
                    "installZsh": true, "configureZshAsDefaultShell": true, "username": "dev"},
                "ghcr.io/rocker-org/devcontainer-features/apt-packages:1": {
                    "packages": "jq, postgresql-client"},
                "github-cli": "latest"
            }
        }""",
        packages=[
            *("git", "curl", "go", "java", "maven", "wget", "zip", "unzip", "jq", "less"),
            *("procps", "lsof", "rsync", "zsh", "postgresql-client", "gh"),
        ],
        blueprint={
            "target": {"os": {"family": "ubuntu"}},
            "customization": {"defaultShell": "zsh"},
        },
        warned=["image", "features", "features", "features"],
    ),
    "composed services": Case(
        """{
            "name": "${localWorkspaceFolderBasename} (Rails)",
            "dockerComposeFile": ["../compose.yaml", "compose.yaml"],
            "service": "web",
            "runServices": ["db"],
            "shutdownAction": "stopCompose",
            "workspaceFolder": "/workspaces/${localWorkspaceFolderBasename}",
            "forwardPorts": [3000, "db:5432", "9229/tcp", "localhost:8080"],
            "portsAttributes": {"3000": {"label": "Rails"}, "5000-6000": {"protocol": "https"}},
            "containerEnv": {"REDIS_PORT": 6379, "PATH": "${containerEnv:PATH}:bin", "HOME": "/x"},
            "remoteEnv": {"EDITOR": "vi", "RAILS_ENV": null},
            "onCreateCommand": "bin/setup ${containerWorkspaceFolder}",
            "postCreateCommand": {"gems": "bundle", "keys": ["bin/keys", "--at", "a b"]},
            "postStartCommand": "bin/dev ${PORT:-3000}"
        }""",
        blueprint={
            "runtime": {
                "workspaceRoot": "/workspaces/shop",
                "workingDirectory": "/workspaces/shop",
                "env": {"REDIS_PORT": "6379", "EDITOR": "vi"},
            }
        },
        setup=["bin/setup /workspaces/shop", "bundle", "bin/keys --at 'a b'"],
        steps=["bin/dev ${PORT:-3000}"],
        ports={3000: "Rails", 8080: ""},
        warned=[
            *("containerEnv.PATH", "containerEnv.HOME", "remoteEnv.RAILS_ENV"),
            *("forwardPorts", "forwardPorts", "portsAttributes", "postCreateCommand"),
            *("dockerComposeFile", "service", "runServices", "shutdownAction"),
        ],
    ),
    "a Dockerfile with rights": Case(
        """{
            "build": {"dockerfile": "Dockerfile", "context": ".."},
            "runArgs": ["--cap-add=SYS_PTRACE", "--memory=8g"],
            "capAdd": ["SYS_PTRACE"], "securityOpt": ["seccomp=unconfined"], "privileged": true,
            "init": true, "updateRemoteUserUID": true, "overrideCommand": false,
            "mounts": ["source=cache,target=/cache,type=volume"],
            "initializeCommand": "rm -rf ~/.cache", "postAttachCommand": "echo hello",
            "hostRequirements": {"cpus": 4}, "secrets": {"KEY": {}}, "appPort": [3300],
            "containerUser": "root", "remoteUser": "root",
            "workspaceFolder": "/etc", "somethingNew": 1
        }""",
        blueprint={"customization": {"user": "root"}},
        warned=[
            "workspaceFolder",
            *("build", "runArgs", "capAdd", "securityOpt", "privileged", "overrideCommand"),
            *("mounts", "initializeCommand", "postAttachCommand", "hostRequirements"),
            *("secrets", "appPort", "somethingNew"),
        ],
    ),
    "everything of the wrong kind": Case(
        """{
            "name": 1, "image": [], "features": [], "forwardPorts": {"a": 1}, "containerEnv": "x",
            "remoteEnv": {"a b": "c", "OK": []}, "postCreateCommand": 17, "remoteUser": {},
            "onCreateCommand": {"a": {"b": "true"}}, "portsAttributes": 3, "workspaceFolder": 5
        }""",
        warned=[
            *("workspaceFolder", "name", "image", "features", "remoteUser", "containerEnv"),
            *("remoteEnv.a b", "remoteEnv.OK", "forwardPorts", "onCreateCommand.a"),
            *("postCreateCommand",),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_file_is_translated_and_what_has_no_counterpart_is_named(case: Case) -> None:
    made = translated(read_jsonc(case.text))
    blueprint = dict(made.blueprint)
    assert blueprint.pop("harness") == {"id": "shell"}
    packages = [each["id"] for each in blueprint.pop("tooling", {"packages": []})["packages"]]
    lifecycle = blueprint.pop("lifecycle", {})
    assert packages == case.packages
    assert [each["run"] for each in lifecycle.get("setup", [])] == case.setup
    assert [each["run"] for each in lifecycle.get("startup", {}).get("steps", [])] == case.steps
    assert blueprint == case.blueprint
    assert made.ports == case.ports
    assert [each.partition(":")[0] for each in made.warnings] == case.warned, made.warnings


def test_commands_wait_for_files_that_are_copied() -> None:
    told = {"postCreateCommand": "make", "postStartCommand": {"a": "one", "b": "two"}}
    made = translated(told, copied=True)
    assert "lifecycle" not in made.blueprint
    assert made.commands == [
        ("postCreateCommand", "make"),
        ("postStartCommand.a", "one"),
        ("postStartCommand.b", "two"),
    ]
    assert [each.partition(":")[0] for each in made.warnings] == ["postStartCommand"] * 2


def test_variables_of_this_machine_are_read_only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hidden")
    told = {"containerEnv": {"A": "${localEnv:MY_TOKEN}", "B": "${localEnv:NEITHER:plain}"}}
    quiet = translated(told)
    assert quiet.blueprint["runtime"]["env"] == {"A": "", "B": "plain"}
    assert ["MY_TOKEN" in each for each in quiet.warnings] == [True, False]
    asked = translated(told, local_env=True)
    assert asked.blueprint["runtime"]["env"] == {"A": "hidden", "B": "plain"}
    assert asked.warnings == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('\ufeff{"a": "// /* x */", /* x\n*/ "b": [1, 2,], }', {"a": "// /* x */", "b": [1, 2]}),
        ('{"a": "quote \\" // , }", // "b"\n}', {"a": 'quote " // , }'}),
        ('[",]", ",}",]', [",]", ",}"]),
        ("{ // https://x\n}", {}),
    ],
)  # fmt: skip
def test_comments_and_last_commas_are_no_faults(text: str, value: Any) -> None:
    assert read_jsonc(text) == value


def test_a_fault_is_shown_where_it_is() -> None:
    with pytest.raises(ValueError, match="line 3 column"):
        read_jsonc('{ /* one\n two */ "a": 1\n "b": 2}')


# ---------------------------------------------------------------- where it lies


def put(folder: Path, name: str, told: object) -> Path:
    """Write a file of JSON."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told))
    return path


def test_a_folder_has_it_in_three_places_and_several_have_to_be_named(tmp_path: Path) -> None:
    one = put(tmp_path, ".devcontainer/one/devcontainer.json", {"name": "one"})
    assert of_folder(tmp_path) == one
    put(tmp_path, ".devcontainer/two/devcontainer.json", {"name": "two"})
    with pytest.raises(click.ClickException, match="name one of these"):
        of_folder(tmp_path)
    named = source_of(str(one), "shell")
    assert (named.name, named.folder) == ("one", tmp_path)
    at_root = put(tmp_path, ".devcontainer.json", {"name": "root"})
    assert of_folder(tmp_path) == at_root
    usual = put(tmp_path, ".devcontainer/devcontainer.json", {"name": "usual"})
    assert of_folder(tmp_path) == usual
    assert project_of(usual) == project_of(at_root) == project_of(one) == tmp_path
    put(tmp_path, "svc.json", {"harness": {"id": "codex"}})
    assert source_of(str(tmp_path), "shell").blueprint == {"harness": {"id": "codex"}}


def test_what_cannot_be_read_is_said_in_one_sentence(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"a": ' * 100_000):
        (tmp_path / ".devcontainer.json").write_text(text)
        with pytest.raises(click.ClickException, match=r"devcontainer\.json cannot be read: "):
            source_of(str(tmp_path), "shell")
    (tmp_path / ".devcontainer.json").write_bytes(b"\xff")
    with pytest.raises(click.ClickException, match="cannot be read"):
        source_of(str(tmp_path), "shell")


def test_a_link_out_of_the_project_is_not_followed(tmp_path: Path) -> None:
    outside = put(tmp_path, "outside.json", {"name": "somebody's"})
    project = tmp_path / "project"
    project.mkdir()
    (project / ".devcontainer.json").symlink_to(outside)
    with pytest.raises(click.ClickException, match="link to another place"):
        read(project / ".devcontainer.json", project)


def git_repository(folder: Path, files: dict[str, object]) -> str:
    """Make a git repository and return its address."""
    for name, told in files.items():
        put(folder, name, told)
    who = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run(["git", *who, *words], cwd=folder, check=True)
    return f"file://{folder}"


def test_a_repository_is_asked_for_its_file_and_only_for_that(tmp_path: Path) -> None:
    told = {
        "postCreateCommand": "make",
        "forwardPorts": [80],
        "containerEnv": {"T": "${localEnv:HOME}"},
    }
    files = {".devcontainer/devcontainer.json": told, "svc.json": {}, "big/file.json": 1}
    url = git_repository(tmp_path / "my project", files)
    source = source_of(url, "shell", local_env=True)
    assert source.blueprint["lifecycle"]["setup"][0]["run"] == "make"
    assert source.blueprint["sources"] == {"workspace": {"url": url}}
    assert source.blueprint["runtime"]["env"] == {"T": ""}, "a stranger's file reads nothing here"
    assert (source.folder, source.commands, source.ports) == (None, [], {80: ""})
    assert any(each.startswith("svc.json: not used") for each in source.warnings)
    with Fetched(url) as fetched:
        assert fetched.fetch() is None
        assert not (fetched.root / "big").exists()
        root = fetched.root
    assert not root.exists()


def test_an_address_that_only_the_service_reaches_is_still_an_address(tmp_path: Path) -> None:
    source = source_of(f"file://{tmp_path}/none.git", "shell")
    assert source.blueprint["sources"]["workspace"]["url"].endswith("none.git")
    assert "cannot be read from here" in source.warnings[0]
