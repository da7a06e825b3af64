"""``manage.py engine``: the Docker Engines that workspaces are placed on."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Count, Q

from controlplane.errors import ControlPlaneError, JobError
from controlplane.settings_environment import is_loopback
from controlplane.spelling import format_timestamp
from controlplane.work.models import heartbeat_stale
from workspaces.engines.certificates import (
    make_certificates,
    read_certificates,
    seal_certificates,
)
from workspaces.engines.engine_adapters import engine_id_at
from workspaces.lifecycle import engines
from workspaces.models import Engine, RuntimeInstance
from workspaces.models.known_engines import NAME
from workspaces.runtimes.configured_cluster import on_kubernetes

MIB = 1024**2


def _name(text: str) -> str:
    if not re.fullmatch(NAME, text):
        raise argparse.ArgumentTypeError(
            "must be lower-case letters, digits and hyphens, at most 63 characters"
        )
    return text


class Command(BaseCommand):
    """Adds, lists, drains and forgets engines; makes the certificates between two machines."""

    help = (
        "Manage the Docker Engines that workspaces are placed on. The first engine, that of "
        "DOCKER_HOST, is called local."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the subcommands."""
        commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        commands.add_parser("list", help="show the engines and their state")
        certificates = commands.add_parser(
            "certificates", help="make the certificates for an engine on another machine"
        )
        certificates.add_argument("name", type=_name, metavar="NAME")
        certificates.add_argument(
            "--address", required=True, help="the IP address or host name at which it is reached"
        )
        certificates.add_argument(
            "--folder", required=True, type=Path, help="gets the folders server and client"
        )
        add = commands.add_parser("add", help="add an engine, which has to answer")
        add.add_argument("name", type=_name, metavar="NAME")
        add.add_argument("url", metavar="URL", help="tcp://host:port, or unix:///path")
        add.add_argument(
            "--certificates", type=Path, metavar="FOLDER", help="with ca.pem, cert.pem and key.pem"
        )
        add.add_argument(
            "--replace", action="store_true", help="change how a known engine is reached"
        )
        for action, what in (
            ("drain", "place nothing new on an engine; what runs there goes on"),
            ("undrain", "place workspaces on an engine again"),
            ("forget", "declare an engine gone for good; its workspaces fail (engine-gone)"),
        ):
            command = commands.add_parser(action, help=what)
            command.add_argument("name", type=_name, metavar="NAME")
            if action == "forget":
                command.add_argument(
                    "--wait", type=float, metavar="SECONDS", help="how long its workers may take"
                )

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it and tell."""
        try:
            getattr(self, f"_{options['action']}")(options)
        except ControlPlaneError as error:
            raise CommandError(error.detail) from error
        except JobError as error:
            raise CommandError(error.message) from error

    def _list(self, options: dict[str, Any]) -> None:
        stale = heartbeat_stale()
        answering = set(Engine.objects.answering(stale=stale).values_list("pk", flat=True))
        live = Q(status__in=RuntimeInstance.LIVE)
        counted = RuntimeInstance.objects.filter(live).values("engine_name")
        running = dict(counted.annotate(n=Count("pk")).values_list("engine_name", "n"))
        rows = list(Engine.objects.order_by("name"))
        if not rows:
            self.stdout.write("No engine is known yet: the first build worker writes its own.")
        for row in rows:
            heard = format_timestamp(row.seen_at) if row.seen_at else "never"
            health = "answers" if row.pk in answering else f"does not answer, last heard: {heard}"
            if row.state == Engine.State.GONE:
                health = "gone for good"
            self.stdout.write(
                f"{row.name}: {row.state}, {health}, workspaces: {running.get(row.name, 0)}, "
                f"memory: {row.memory_bytes // MIB} MiB, CPUs: {row.cpus}, "
                f"images: {len(row.images)}, {row.url or 'DOCKER_HOST'}"
            )

    def _certificates(self, options: dict[str, Any]) -> None:
        folder = options["folder"]
        make_certificates(folder, name=options["name"], address=options["address"])
        self.stdout.write(
            f"Copy {folder / 'server'} to the engine's machine; give {folder / 'client'} to "
            "manage.py engine add --certificates, and remove both afterwards."
        )

    def _add(self, options: dict[str, Any]) -> None:
        if on_kubernetes():
            raise CommandError(
                "Workspaces run on Kubernetes (DEFAULT_RUNTIME_ADAPTER), which places them itself."
            )
        name, url, folder = options["name"], options["url"], options["certificates"]
        _require_safe(url, secured=folder is not None)
        sealed = folder and seal_certificates(read_certificates(folder), name=name)
        engine_id = engine_id_at(url, folder)
        given = {"url": url, "certificates": sealed, "engine_id": engine_id}
        if options["replace"]:
            engines.replace_access(name, **given)
            self.stdout.write(
                f"The engine {name} is reached this way from now on. manage.py engineworkers "
                "starts new workers; restart those that you have started yourself."
            )
            return
        engines.add_engine(name, **given)
        self.stdout.write(
            f"The engine {name} is added. It takes workspaces once its workers run, which "
            "manage.py engineworkers starts."
        )

    def _drain(self, options: dict[str, Any]) -> None:
        engines.drain_engine(options["name"], draining=True)
        self.stdout.write(
            f"The engine {options['name']} takes nothing new. What runs there goes on until it is "
            "stopped; persistent workspaces wait for manage.py engine undrain."
        )

    def _undrain(self, options: dict[str, Any]) -> None:
        engines.drain_engine(options["name"], draining=False)
        self.stdout.write(f"The engine {options['name']} takes workspaces again.")

    def _forget(self, options: dict[str, Any]) -> None:
        wait = options["wait"]
        ended = engines.forget_named(
            options["name"],
            by="manage.py",
            stale=heartbeat_stale(),
            wait=engines.wait_for_workers(heartbeat_stale()) if wait is None else wait,
        )
        self.stdout.write(
            f"The engine {options['name']} is gone. Workspaces that have failed with it: {ended}."
        )


def _require_safe(url: str, *, secured: bool) -> None:
    """Refuse an address at which anybody on the way could use the engine."""
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path:
        return
    if parts.scheme != "tcp" or not parts.hostname:
        raise CommandError("The address must be tcp://host:port or unix:///path.")
    if not secured and not is_loopback(parts.hostname):
        raise CommandError(
            "An engine on another machine needs certificates: without them, whoever reaches it is "
            "root there. Make them with manage.py engine certificates, and give --certificates."
        )
