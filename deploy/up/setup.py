"""The order of the set-up: from an empty checkout to services, database, base image and processes.

Every function may be called again at any time: what is there already is used and left alone.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from deploy.services import engine
from deploy.services.errors import MissingPartsError, SetupError
from deploy.services.private import PrivateService, find_program
from deploy.up import base_image, packages
from deploy.up.addresses import refuse_taken_ports, remembered_ports, settle_ports
from deploy.up.environment import (
    bundle_extra_ca,
    complete,
    current_environ,
    load_derived,
    operator_values,
    save_derived,
)
from deploy.up.layout import Layout
from deploy.up.logged import run_logged
from deploy.up.node.node_packages import ensure_node_packages
from deploy.up.own_processes import OwnProcesses
from deploy.up.parts import PARTS, Choice, EnginePart, Part, PostgresPart
from deploy.up.progress import Progress
from deploy.up.ready import wait_ready
from deploy.up.secrets import ensure_secrets
from deploy.up.venv import ensure_venv


@contextmanager
def only_one(layout: Layout, progress: Progress) -> Iterator[None]:
    """Two set-ups of one checkout at once would start everything twice: the second one waits."""
    layout.create()
    with (layout.data / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note("  Another set-up of this checkout is running; waiting for it to finish.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class System:
    """What the set-up ended with: the choice for each part, and the environment of a process."""

    choices: tuple[Choice, ...]
    environ: Mapping[str, str]


def prepare(
    layout: Layout, progress: Progress, *, test: bool = False, ssh_client: bool = False
) -> System:
    """Everything that our own processes, or the tests, stand on. Raises SetupError.

    The tests also stop and kill services of their own, so the programs of the private ones must
    be installed for them even where other services are used; they look at pages in a browser, and
    enter workspaces with the clients that people use.
    """
    make_secrets(layout, progress)
    if layout.moved_because:
        progress.note(f"  Services keep their data in {layout.services}: {layout.moved_because}.")
    parts = _parts(layout)
    choices, missing = _choose(parts)
    if test:
        missing += [
            part.missing()
            for part in parts
            if not isinstance(part, EnginePart)
            and not part.installed()
            and part.title not in {lacking.name for lacking in missing}
        ]
        missing += packages.missing_browser()
        missing += packages.missing_compose()
    if test or ssh_client:
        missing += packages.missing_ssh_clients(test=test)
    client_missing = find_program("docker") is None and not any(
        lacking.name == EnginePart.title for lacking in missing
    )
    if client_missing:
        missing.append(packages.Missing("Docker client", EnginePart.packages, "or set DOCKER_CLI"))
    missing += packages.missing_programs(base_image_tool=_may_need_to_build_base(layout, choices))
    if missing:
        if not packages.can_install():
            raise packages.refuse(missing)
        packages.install(missing, log=layout.setup_log, progress=progress)
        choices, missing = _choose(parts)
        if missing:
            raise packages.refuse(missing)
    ensure_venv(layout, progress, development=test)
    derived: dict[str, str] = {}
    for choice in choices:
        derived.update(_bring_up(choice, progress))
    derived.update(_engine_settings(layout, derived, progress))
    ca_file = bundle_extra_ca(layout)
    if ca_file is not None:
        derived["SVC_EXTRA_CA_FILE"] = ca_file
    derived.update(remembered_ports(layout))
    derived["SVC_UP_PARTS"] = ",".join(
        f"{part.key}:{choice.how}" for part, choice in zip(parts, choices, strict=True)
    )
    save_derived(layout, derived)
    return System(tuple(choices), complete(layout, current_environ(), derived, test=test))


def prepare_lint(layout: Layout, progress: Progress) -> None:
    """The tools that the linters need; no service is started. Raises SetupError."""
    make_secrets(layout, progress)
    missing = packages.missing_npm()
    if missing:
        if not packages.can_install():
            raise packages.refuse(missing)
        packages.install(missing, log=layout.setup_log, progress=progress)
    ensure_venv(layout, progress, development=True)
    ensure_node_packages(layout, progress)


def make_secrets(layout: Layout, progress: Progress) -> None:
    """Generate what is missing in `.data/.env`."""
    made = ensure_secrets(layout.secrets)
    if made:
        with progress.step("secrets") as step:
            step.done(f"generated in {layout.secrets}, never overwritten")


def up(layout: Layout, progress: Progress, *, ssh_client: bool = False) -> System:
    """Services, migrations and our own processes, waiting until the system says it is ready."""
    system = prepare(layout, progress, ssh_client=ssh_client)
    processes = OwnProcesses(layout)
    if processes.is_current(system.environ):
        with progress.step("processes") as step:
            step.now("asking /readyz and the SSH gateway")
            step.done("running, unchanged")
            wait_ready(processes, system.environ)
        return system
    environ = make_way(layout, processes, system.environ, progress)
    with progress.step("database") as step:
        step.now("migrating")
        python = layout.venv / "bin/python"
        run_logged(
            (python, "manage.py", "migrate", "--noinput"),
            log=layout.setup_log,
            seconds=900,
            env=environ,
            directory=layout.checkout,
        )
        step.done("migrated")
    with progress.step("processes") as step:
        step.now("starting")
        processes.start(environ)
        step.now("waiting for /readyz and the SSH gateway")
        wait_ready(processes, environ)
        step.done(", ".join(processes.states() or ()))
    return System(system.choices, environ)


def make_way(
    layout: Layout, processes: OwnProcesses, environ: Mapping[str, str], progress: Progress
) -> dict[str, str]:
    """End what runs of ours, or was left by a supervisor that was killed, and settle the ports.

    Raises SetupError for a port that was asked for and is another program's; what ran runs on.
    """
    if processes.running:
        refuse_taken_ports(layout, environ, ours=processes.environ)
        with progress.step("processes") as step:
            step.now("settings or code changed: stopping once the work under way has finished")
            processes.stop()
            step.done("stopped: settings or code changed")
    else:
        # Ports that our own orphans hold are ours to keep.
        processes.stop()
    return settle_ports(layout, environ, progress)


def down(layout: Layout, progress: Progress, *, said: str = "stopped, data kept") -> None:
    """Stop what was started from this checkout, ours first. No data is lost.

    `said` is what the person reads of each service.
    """
    processes = OwnProcesses(layout)
    if processes.running:
        with progress.step("processes") as step:
            step.now("stopping once the work under way has finished")
            processes.stop()
            step.done("stopped")
    else:
        processes.stop()  # its supervisor was killed, perhaps, and left some of them
    for service in reversed(private_services(layout)):
        if service.running:
            with progress.step(service.name) as step:
                step.now("stopping")
                service.stop()
                step.done(said)
        else:
            service.stop()


def private_services(layout: Layout) -> list[PrivateService]:
    """The private services that were ever started from this checkout."""
    return [part.private() for part in _parts(layout) if part.root.exists()]


def _parts(layout: Layout) -> list[Part]:
    values = operator_values(layout, current_environ())
    return [part(layout, values) for part in PARTS]


def _choose(parts: list[Part]) -> tuple[list[Choice], list[packages.Missing]]:
    forced = {
        word.strip() for word in current_environ().get("SVC_UP_PRIVATE", "").split(",") if word
    }
    unknown = forced - {part.key for part in parts}
    if unknown:
        known = ", ".join(part.key for part in parts)
        raise SetupError(f"SVC_UP_PRIVATE names {', '.join(sorted(unknown))}; known are: {known}.")
    choices, missing = [], []
    for part in parts:
        choice = part.choose(forced=part.key in forced)
        if choice is None:
            missing.append(part.missing())
            continue
        _refuse_other_database(part, choice, forced)
        choices.append(choice)
    return choices, missing


def _refuse_other_database(part: Part, choice: Choice, forced: set[str]) -> None:
    """Never slip an empty database under a system whose data lies in another one."""
    used_before = load_derived(part.layout).get("SVC_UP_PARTS", "").split(",")
    elsewhere = {f"{part.key}:found", f"{part.key}:given"} & set(used_before)
    if (
        isinstance(part, PostgresPart)
        and choice.service is not None
        and not choice.service.data_exists
        and elsewhere
        and part.key not in forced
    ):
        raise SetupError(
            "This system's data lies in another PostgreSQL, which was used before and now is "
            "neither named by DATABASE_URL nor found. Start it or name it, or set "
            "SVC_UP_PRIVATE=postgres to begin again with an empty private one."
        )


def _bring_up(choice: Choice, progress: Progress) -> dict[str, str]:
    """Start a private service, say what was chosen, and return what follows from it."""
    service = choice.service
    with progress.step(choice.title) as step:
        started = False
        if service is not None:
            if not service.running:
                step.now("starting a private one")
            started = service.start()
        where = f"pid {service.pid}, {choice.where}" if service is not None else choice.where
        state = "started" if started else "running"
        how = f"private, {state}" if service is not None else choice.how
        step.done(f"{how}: {where} ({choice.why})")
    return dict(service.settings if service is not None else choice.settings)


def _engine_settings(
    layout: Layout, derived: Mapping[str, str], progress: Progress
) -> dict[str, str]:
    """The Docker client to use and the base image the engine has."""
    values = {**derived, **operator_values(layout, current_environ())}
    host = values["DOCKER_HOST"]
    client = engine.choose_client(host, values)
    settings = {"DOCKER_CLI": client}
    if not values.get("SVC_BASE_IMAGE_DEBIAN"):
        settings["SVC_BASE_IMAGE_DEBIAN"] = base_image.ensure_base_image(
            client, host, log=layout.setup_log, progress=progress
        )
    return settings


def _may_need_to_build_base(layout: Layout, choices: list[Choice]) -> bool:
    """False when the engine that will be used has a base image, or the operator names one."""
    values = operator_values(layout, current_environ())
    if values.get("SVC_BASE_IMAGE_DEBIAN"):
        return False
    hosts = [
        values.get("DOCKER_HOST") or choice.settings.get("DOCKER_HOST")
        for choice in choices
        if choice.title == EnginePart.title and choice.service is None
    ]
    if not hosts or not hosts[0]:
        return True
    try:
        client = engine.choose_client(hosts[0], values)
    except MissingPartsError:
        return True
    return base_image.present(client, hosts[0]) is None
