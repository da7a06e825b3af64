"""A blueprint, and what else there is to do, of what a ``devcontainer.json`` says."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from controlplane_cli.devcontainers.equivalents import (
    ADDED_BY_OPTION,
    FEATURES,
    IMAGES,
    LISTS_OF_PACKAGES,
    UNPINNED,
    family_of,
    last_part,
)

COMMANDS = ("onCreateCommand", "updateContentCommand", "postCreateCommand")
"""What is executed once, in this order."""
AT_EACH_START = "postStartCommand"

_SATISFIED = {
    "$schema", "init", "updateRemoteUserUID", "waitFor", "userEnvProbe",
    "overrideFeatureInstallOrder", "otherPortsAttributes",
}  # fmt: skip
"""Members without a counterpart that a workspace needs none of: nothing is lost without them."""

_WHY = {
    "build": "its Dockerfile is not built; name what it installs as features",
    "dockerFile": "it is not built; name what it installs as features",
    "dockerComposeFile": "its services are not started; a workspace is one container",
    "service": "a workspace is one container",
    "runServices": "a workspace is one container",
    "initializeCommand": "nothing of it is executed on this machine",
    "postAttachCommand": "nobody is told when somebody enters",
    "mounts": "a workspace mounts nothing of other machines",
    "workspaceMount": "files are copied or checked out",
    "runArgs": "the engine is not asked in another way than for other workspaces",
    "privileged": "a workspace never is",
    "capAdd": "a workspace gets no further rights",
    "securityOpt": "a workspace gets no further rights",
    "customizations": "they are for editors",
    "hostRequirements": "the operator says how much there is; a blueprint can only ask for less",
    "appPort": "nothing is published on this machine; svc ports --open leads to any port",
    "secrets": "connect an account, and name it in a blueprint's credentials",
    "shutdownAction": "svc stop and --ttl stop a workspace",
}
_RESERVED = {"HOME", "USER", "LOGNAME", "SHELL", "PWD", "LD_PRELOAD", "LD_LIBRARY_PATH"}
_SYSTEM = {
    "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys",
    "tmp", "usr", "var", "root",
}  # fmt: skip
_FOLDER = re.compile(r"(?:/[A-Za-z0-9._@+=-]+)+")
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass
class Translated:
    """What became of a ``devcontainer.json``."""

    blueprint: dict[str, Any]
    name: str | None = None
    commands: list[tuple[str, str]] = field(default_factory=list)
    """Name and shell command of each step that needs the files."""
    ports: dict[int, str] = field(default_factory=dict)
    """Ports that people are to be led to, with what they are called."""
    warnings: list[str] = field(default_factory=list)
    """What has no counterpart, each with the member's name at the beginning."""


def translate(
    told: dict[str, Any],
    *,
    harness: str,
    folder_name: str,
    copied: bool,
    local_env: bool = False,
) -> Translated:
    """Return the blueprint for ``told``; never raises for what it says, but warns.

    With ``copied`` the files come into the workspace after it has started: the commands are then
    left to whoever copies them. Variables of this machine are read with ``local_env`` only.
    """
    made = _Translation(told, harness, folder_name, local_env)
    made.all(copied=copied)
    return made.result


class _Translation:
    def __init__(
        self, told: dict[str, Any], harness: str, folder_name: str, local_env: bool
    ) -> None:
        self._told = dict(told)
        self._local_env = local_env
        self._packages: dict[str, None] = {}
        self.result = Translated({"harness": {"id": harness}})
        self._folder_name = folder_name
        self._folder = "/workspace/repo"

    def all(self, *, copied: bool) -> None:
        self._folder_member()
        name = self._text("name")
        self.result.name = self._substituted("name", name) if name else None
        self._image()
        self._features()
        self._user()
        self._environment()
        self._ports()
        self._commands(copied=copied)
        for member in self._told:
            if member not in _SATISFIED:
                self._warn(member, _WHY.get(member, "there is no counterpart"))
        if self._packages:
            packages = [{"id": each} for each in self._packages]
            self.result.blueprint["tooling"] = {"packages": packages}

    # ------------------------------------------------------------ members

    def _folder_member(self) -> None:
        folder = self._text("workspaceFolder")
        if folder is None:
            return
        folder = self._substituted("workspaceFolder", folder) or ""
        plain = str(PurePosixPath(folder))
        parts = PurePosixPath(plain).parts
        usable = _FOLDER.fullmatch(plain) and ".." not in parts and parts[1] not in _SYSTEM
        if not usable or plain == "/home":
            self._warn("workspaceFolder", f"{folder} cannot be one; it is {self._folder}")
            return
        self._folder = plain
        runtime = {"workspaceRoot": plain, "workingDirectory": plain}
        self.result.blueprint.setdefault("runtime", {}).update(runtime)

    def _image(self) -> None:
        image = self._text("image")
        if not image:
            return
        short, _ = last_part(image)
        family = family_of(image)
        packages = IMAGES.get(short)
        self._add(packages or ())
        if family is not None:
            self.result.blueprint["target"] = {"os": {"family": family}}
        where = family or "the operator's default system"
        if packages is None:
            self._warn("image", f"{image} is not known: only {where} is taken of it")
        else:
            these = f" with {', '.join(packages)}" if packages else ""
            self._warn("image", f"not {image}, but {where}{these}, in the versions there")

    def _features(self) -> None:
        features = self._told.pop("features", {})
        if not isinstance(features, dict):
            self._warn("features", "it is no object")
            return
        for name, options in features.items():
            short, _ = last_part(str(name))
            plain = {"version": options} if isinstance(options, str) else options
            plain = dict(plain) if isinstance(plain, dict) else {}
            if short in LISTS_OF_PACKAGES:
                listed = re.split(r"[,\s]+", str(plain.pop("packages", "")))
                self._add(each for each in listed if each)
            elif short in FEATURES:
                self._add(FEATURES[short])
            else:
                self._warn("features", f"{name} has no counterpart among the packages")
                continue
            for option, value in plain.items():
                self._option(short, str(option), value)

    def _option(self, feature: str, option: str, value: Any) -> None:
        if option == "version":
            if str(value).lower() not in UNPINNED:
                self._warn("features", f"{feature}: the version there is, not {value}")
        elif (feature, option) == ("common-utils", "configureZshAsDefaultShell"):
            if value is True:
                self._add(("zsh",))
                customization = self.result.blueprint.setdefault("customization", {})
                customization["defaultShell"] = "zsh"
        elif value is True and ADDED_BY_OPTION.get((feature, option)):
            self._add((ADDED_BY_OPTION[feature, option],))
        elif value not in (False, "", None, "none", "automatic", "auto"):
            self._warn("features", f"{feature}: there is no counterpart of its option {option}")

    def _user(self) -> None:
        remote, container = self._text("remoteUser"), self._text("containerUser")
        if remote and container and remote != container:
            self._warn("containerUser", "everything runs as the remoteUser")
        user = remote or container
        if user == "root":
            self.result.blueprint.setdefault("customization", {})["user"] = "root"
        elif user and user != "workspace":
            member = "remoteUser" if remote else "containerUser"
            self._warn(member, f"the user is called workspace, not {user}")

    def _environment(self) -> None:
        env: dict[str, str] = {}
        for member in ("containerEnv", "remoteEnv"):
            variables = self._told.pop(member, {})
            if not isinstance(variables, dict):
                self._warn(member, "it is no object")
                continue
            for name, value in variables.items():
                text = self._variable(f"{member}.{name}", name, value)
                if text is not None:
                    env[name] = text
        if env:
            self.result.blueprint.setdefault("runtime", {})["env"] = env

    def _variable(self, place: str, name: str, value: Any) -> str | None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if value is None:
            fault = "a variable cannot be taken away"
        elif not isinstance(value, str):
            fault = "it is no text"
        elif name in _RESERVED or name.startswith("SVC_"):
            fault = "the service sets it"
        elif not _ENV_NAME.fullmatch(name):
            fault = "it is no name of a variable"
        else:
            return self._substituted(place, value)
        self._warn(place, fault)
        return None

    def _ports(self) -> None:
        labels = self._told.pop("portsAttributes", {})
        labels = labels if isinstance(labels, dict) else {}
        ports = self._told.pop("forwardPorts", [])
        for each in ports if isinstance(ports, list) else [ports]:
            number = str(each).removeprefix("localhost:").removeprefix("127.0.0.1:")
            if isinstance(each, bool) or not number.isdecimal() or not 0 < int(number) < 65536:
                self._warn("forwardPorts", f"{each} is no port of the workspace")
                continue
            about = labels.pop(number, None)
            label = about.get("label", "") if isinstance(about, dict) else ""
            self.result.ports[int(number)] = str(label)
        for each in labels:
            self._warn("portsAttributes", f"there is no counterpart of what it says of {each}")

    def _commands(self, *, copied: bool) -> None:
        once: list[tuple[str, str]] = []
        for member in COMMANDS:
            once += self._steps(member)
        always = self._steps(AT_EACH_START)
        if copied:
            self.result.commands = once + always
            if always:
                self._warn(
                    AT_EACH_START,
                    "it is executed now, and not when the workspace starts again, "
                    "as the files of a folder come after the start",
                )
            return
        lifecycle: dict[str, Any] = {}
        if once:
            lifecycle["setup"] = [_step(*each) for each in once]
        if always:
            lifecycle["startup"] = {"steps": [_step(*each) for each in always]}
        if lifecycle:
            self.result.blueprint["lifecycle"] = lifecycle

    def _steps(self, member: str) -> list[tuple[str, str]]:
        command = self._told.pop(member, None)
        if command is None:
            return []
        named = command if isinstance(command, dict) else {"": command}
        if len(named) > 1:
            self._warn(member, "its commands are executed one after the other, not at once")
        found = []
        for name, each in named.items():
            place = f"{member}.{name}" if name else member
            if isinstance(each, str):
                script = self._substituted(place, each)
            elif isinstance(each, list) and each and all(isinstance(word, str) for word in each):
                words = [self._substituted(place, word) for word in each]
                script = None if None in words else shlex.join(word or "" for word in words)
            else:
                self._warn(place, "it is neither a text nor a list of texts")
                continue
            if script:
                found.append((place, script))
        return found

    # ------------------------------------------------------------ values

    def _text(self, member: str) -> str | None:
        value = self._told.pop(member, None)
        if value is not None and not isinstance(value, str):
            self._warn(member, "it is no text")
            return None
        return value

    def _substituted(self, place: str, text: str) -> str | None:
        """Return the text with its variables, None (and a warning) where one is not to be had."""
        unknown: list[str] = []

        def value(found: re.Match[str]) -> str:
            name, _, rest = found[1].partition(":")
            if name == "localEnv":
                return self._of_this_machine(place, rest)
            plain: dict[str, Callable[[], str]] = {
                "containerWorkspaceFolder": lambda: self._folder,
                "containerWorkspaceFolderBasename": lambda: PurePosixPath(self._folder).name,
                "localWorkspaceFolderBasename": lambda: self._folder_name,
            }
            if name in plain:
                return plain[name]()
            if name in {"containerEnv", "localWorkspaceFolder", "devcontainerId"}:
                unknown.append(found[0])
            return found[0]

        made = _VARIABLE.sub(value, text)
        if unknown:
            self._warn(place, f"left out, as nothing stands for {', '.join(unknown)} here")
            return None
        return made

    def _of_this_machine(self, place: str, rest: str) -> str:
        name, _, default = rest.partition(":")
        if self._local_env:
            return os.environ.get(name, default)
        self._warn(
            place, f"{name} of this machine was not read ({default!r} instead): --local-env does"
        )
        return default

    def _add(self, packages: Any) -> None:
        self._packages.update(dict.fromkeys(packages))

    def _warn(self, member: str, text: str) -> None:
        self.result.warnings.append(f"{member}: {text}")


def _step(place: str, script: str) -> dict[str, str]:
    return {"id": place[:128], "run": script, "shell": "sh"}
