"""The four real parts: which one is used, and why.

In this order: the one the settings name, the one whose data lies here already, the one that runs
on this machine and lets us in, a private one when its program is installed. A part for which none
of these holds is missing.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import unquote, urlsplit

from deploy.services import engine, postgres, rabbitmq, registry
from deploy.services.errors import SetupError
from deploy.services.ports import is_open
from deploy.services.private import PrivateService, find_program
from deploy.up.layout import Layout
from deploy.up.packages import Missing


@dataclass(frozen=True)
class Choice:
    """Which one of a part is used: how it was come by, why, where it is, what our own processes
    must be told about it, and, when it is private, the service, which knows that itself."""

    title: str
    how: Literal["given", "found", "private"]
    why: str
    where: str
    settings: Mapping[str, str] = field(default_factory=dict)
    service: PrivateService | None = None


class Part(ABC):
    """One of the four. `values` are the operator's settings: environment over `.data/.env`."""

    key: ClassVar[str]
    title: ClassVar[str]
    variables: ClassVar[tuple[str, ...]]
    packages: ClassVar[tuple[str, ...]]

    def __init__(self, layout: Layout, values: Mapping[str, str]) -> None:
        self.layout = layout
        self.values = values

    @property
    def root(self) -> Path:
        """Where the private one's files lie."""
        return self.layout.services / self.key

    @abstractmethod
    def private(self) -> PrivateService:
        """The private one, started or not."""

    @abstractmethod
    def installed(self) -> bool:
        """True when the private one could be started on this machine."""

    @abstractmethod
    def found(self) -> Choice | None:
        """One that runs already and lets us in."""

    @abstractmethod
    def reachable(self, name: str, value: str) -> bool:
        """True when something answers at the address the operator gave."""

    def missing(self) -> Missing:
        instead = f"or set {' or '.join(self.variables)}"
        return Missing(self.title, self.packages, instead)

    def given(self) -> Choice | None:
        """The one the settings name. Raises SetupError when it does not answer."""
        for name in self.variables:
            value = self._value(name)
            if not value:
                continue
            where = _without_password(value)
            if not self.reachable(name, value):
                raise SetupError(
                    f"{name} says {where}, but nothing answers there. Start it, correct {name}, "
                    "or unset it to let the set-up find or start one."
                )
            # Kept, so that `make staff` and the like reach it without being told again.
            told = {name: self.values[name]} if name in self.values else {}
            settings = {**told, **self.given_settings(name, value)}
            return Choice(self.title, "given", f"{name} is set", where, settings)
        return None

    def given_settings(self, name: str, value: str) -> dict[str, str]:
        """What the given address implies beyond itself."""
        return {}

    def choose(self, *, forced: bool) -> Choice | None:
        """The one to use, or None when there is none and none can be started."""
        if forced:
            return self._start_ours("asked for by SVC_UP_PRIVATE") if self.installed() else None
        given = self.given()
        if given is not None:
            return given
        if self.private().data_exists and self.installed() and self.may_start():
            return self._start_ours("its data lies here")
        found = self.found()
        if found is not None:
            return found
        return self._start_ours("installed on this machine") if self.installed() else None

    def may_start(self) -> bool:
        """False when another one on this machine forbids to start ours beside it."""
        return True

    def _start_ours(self, why: str) -> Choice:
        return Choice(self.title, "private", why, str(self.root), service=self.private())

    def _value(self, name: str) -> str:
        """The setting, which as NAME_FILE may also name a file that holds it."""
        file = self.values.get(f"{name}_FILE")
        return Path(file).read_text().strip() if file else self.values.get(name, "").strip()


class PostgresPart(Part):
    key = "postgres"
    title = "PostgreSQL"
    variables = ("DATABASE_URL",)
    packages = ("postgresql",)

    def private(self) -> postgres.PrivatePostgres:
        return postgres.PrivatePostgres(self.root, None, self.values["SVC_DB_PASSWORD"])

    def installed(self) -> bool:
        return postgres.find_binaries() is not None

    def found(self) -> Choice | None:
        database = self.values["SVC_INSTANCE_ID"].replace("-", "_")
        url = postgres.found_url(database)
        if url is None:
            return None
        why = "its local socket lets this account create databases"
        return Choice(self.title, "found", why, unquote(url), {"DATABASE_URL": url})

    def reachable(self, name: str, value: str) -> bool:
        parts = urlsplit(value)
        host = unquote(parts.hostname or "")
        port = parts.port or 5432
        if host.startswith("/") or not host:
            return (Path(host or "/var/run/postgresql") / f".s.PGSQL.{port}").exists()
        return is_open(port, host, timeout=5)


class RabbitMQPart(Part):
    key = "rabbitmq"
    title = "RabbitMQ"
    variables = ("RABBITMQ_URL",)
    packages = ("rabbitmq-server",)

    def private(self) -> rabbitmq.PrivateRabbitMQ:
        return rabbitmq.PrivateRabbitMQ(self.root, None, self.values["SVC_RABBITMQ_PASSWORD"])

    def installed(self) -> bool:
        return rabbitmq.find_server() is not None

    def found(self) -> Choice | None:
        url = rabbitmq.found_url()
        if url is None:
            return None
        why = "its default local account is accepted"
        return Choice(self.title, "found", why, "127.0.0.1:5672", {"RABBITMQ_URL": url})

    def reachable(self, name: str, value: str) -> bool:
        parts = urlsplit(value)
        port = parts.port or (5671 if parts.scheme == "amqps" else 5672)
        return is_open(port, parts.hostname or "localhost", timeout=5)


class RegistryPart(Part):
    key = "registry"
    title = "registry"
    variables = ("REGISTRY_BASE_URL",)
    packages = ("docker-registry",)

    def private(self) -> registry.PrivateRegistry:
        # Settings of the operator's win over what follows from here, and so does their account.
        user, password = self._value("REGISTRY_USERNAME"), self._value("REGISTRY_PASSWORD")
        # What an earlier version has started is stopped without one; whatever starts has one made.
        made = self.values.get("SVC_REGISTRY_PASSWORD", "")
        return registry.PrivateRegistry(
            self.root,
            self._port(),
            password or made,
            user=user or registry.USER,
        )

    def installed(self) -> bool:
        return registry.find_server() is not None

    def found(self) -> Choice | None:
        address = registry.found_address(port=self._port() or registry.CUSTOMARY_PORT)
        if address is None:
            return None
        why = "it answers at the usual address and requires no account"
        return Choice(self.title, "found", why, address, registry.settings_for(address))

    def reachable(self, name: str, value: str) -> bool:
        parts = urlsplit(value)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return bool(parts.hostname) and is_open(port, parts.hostname or "", timeout=5)

    def given_settings(self, name: str, value: str) -> dict[str, str]:
        return {"REGISTRY_PUSH_REGISTRY": urlsplit(value).netloc.rpartition("@")[2]}

    def _port(self) -> int | None:
        """Where on 127.0.0.1 the operator wants it; None when that does not matter."""
        text = self._value("SVC_REGISTRY_PORT")
        if text and not (text.isdecimal() and 0 < int(text) < 65536):
            raise SetupError(f"SVC_REGISTRY_PORT is {text!r}; it has to be a port, 1 to 65535.")
        return int(text) if text else None


class EnginePart(Part):
    key = "engine"
    title = "Docker Engine"
    variables = ("DOCKER_HOST", "CONTAINER_SOCKET_PATH")
    packages = ("docker.io",)

    def private(self) -> engine.PrivateEngine:
        return engine.PrivateEngine(self.root)

    def installed(self) -> bool:
        return os.geteuid() == 0 and find_program("dockerd") is not None

    def may_start(self) -> bool:
        return not engine.runs_elsewhere(self.private().pid)

    def choose(self, *, forced: bool) -> Choice | None:
        if forced and not self.may_start():
            raise SetupError(
                "SVC_UP_PRIVATE asks for a Docker Engine of our own, but another one runs on this "
                "machine. Two engines would conflict over the bridge and firewall rules: use the "
                "one "
                "that is running, or stop it first."
            )
        return super().choose(forced=forced)

    def found(self) -> Choice | None:
        host = engine.found_host()
        if host is None:
            return None
        return Choice(self.title, "found", "it answers", host, {"DOCKER_HOST": host})

    def reachable(self, name: str, value: str) -> bool:
        host = value if name == "DOCKER_HOST" else f"unix://{value}"
        # Only the client knows how to reach an engine over SSH or TLS; it is asked later.
        return urlsplit(host).scheme not in {"unix", "http"} or bool(engine.api_version(host))

    def given_settings(self, name: str, value: str) -> dict[str, str]:
        return {} if name == "DOCKER_HOST" else {"DOCKER_HOST": f"unix://{value}"}

    def missing(self) -> Missing:
        refused = engine.refused_socket()
        if refused is not None:
            instead = f"{refused} exists, but this account may not use it: join the group docker"
            return Missing(self.title, (), instead)
        if os.geteuid() != 0 and find_program("dockerd") is not None:
            instead = "installed, but not running: start it, set DOCKER_HOST, or run this as root"
            return Missing(self.title, (), instead)
        if os.geteuid() != 0:
            return Missing(self.title, self.packages, "and start it, or set DOCKER_HOST")
        return super().missing()


PARTS: tuple[type[Part], ...] = (PostgresPart, RabbitMQPart, RegistryPart, EnginePart)


def _without_password(url: str) -> str:
    """An address that may be shown: scheme, host, port and path only."""
    parts = urlsplit(url)
    if not parts.scheme:
        return url
    host = unquote(parts.hostname or "")
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"
