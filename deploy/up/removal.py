"""Removing what this checkout left on the machine: containers, networks, images, data."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys

from deploy.services import engine
from deploy.services.errors import SetupError
from deploy.up import setup
from deploy.up.environment import complete, current_environ, load_derived
from deploy.up.layout import Layout
from deploy.up.progress import Progress

_KINDS = (
    ("container", ("ls", "-aq"), ("rm", "-fv")),
    ("network", ("ls", "-q"), ("rm",)),
    # Those of persistent workspaces have names, and do not go with their containers.
    ("volume", ("ls", "-q"), ("rm", "-f")),
    ("image", ("ls", "-aq"), ("rm", "-f")),
)
_HELD = {"postgres": "the database", "rabbitmq": "the queue", "registry": "the registry"}
"""What each service but the engine keeps for us."""


def confirm(layout: Layout) -> bool:
    """Ask before anything is lost; without somebody to ask the answer is no."""
    others = _kept_by_others(layout)
    gone = "".join(f"{held}, " for held in _HELD.values() if held not in others)
    print(
        f"This removes, for good: every workspace, its container, volumes and image, {gone}"
        f"and the secrets of this checkout ({layout.data}"
        + (f" and {layout.services}" if layout.moved_because else "")
        + ")."
    )
    if others:
        print(_left(others))
    if not sys.stdin.isatty():
        print("There is no terminal to ask at. To remove it anyway: make clean YES=1")
        return False
    return input("Remove all of it? [y/N] ").strip().lower() in {"y", "yes"}


def clean(layout: Layout, progress: Progress) -> None:
    """Stop everything, then remove what carries our label and all data. The venv stays, and so
    does what services keep that are not this checkout's."""
    others = _kept_by_others(layout)
    with contextlib.suppress(SetupError):
        _remove_labelled(layout, progress)
    setup.down(layout, progress, said="stopped")
    with progress.step("data") as step:
        step.now(f"removing {layout.data}")
        roots = [layout.services, layout.sockets, layout.data]
        for root in roots:
            engine.unmount(engine.mounts_below(root))
            shutil.rmtree(root, ignore_errors=not root.exists())
        step.done(f"removed {layout.data}")
    if others:
        progress.note(f"  {_left(others)}")


def _kept_by_others(layout: Layout) -> list[str]:
    """What lies in services that were found or given, which are not ours to empty."""
    words = load_derived(layout).get("SVC_UP_PARTS", "").split(",")
    parts = [word.partition(":") for word in words]
    return [_HELD[key] for key, _, how in parts if key in _HELD and how != "private"]


def _left(others: list[str]) -> str:
    return (
        f"What stays, in services that are not this checkout's: {', '.join(others)}. "
        "Remove it there: the next set-up has other secrets."
    )


def mention_workspaces(layout: Layout, progress: Progress) -> None:
    """Say that workspaces in an engine that is not ours go on running."""
    engine_host = _engine(layout)
    if engine_host is None:
        return
    for instance in _instances(layout)[:1]:
        running = _docker(
            *engine_host, "container", "ls", "-q", "--filter", f"label=svc.instance={instance}"
        )
        if running:
            progress.note(
                f"  {len(running)} workspace containers keep running in the Docker Engine of this "
                "machine, which is not ours to stop."
            )


def _remove_labelled(layout: Layout, progress: Progress) -> None:
    engine_host = _engine(layout)
    if engine_host is None:
        return
    with progress.step("workspaces") as step:
        removed, stayed = [], []
        _take_rules_away(layout, engine_host)
        for kind, list_arguments, remove_arguments in _KINDS:
            step.now(f"removing every {kind} of this installation")
            listing = (*engine_host, kind, *list_arguments)
            ours = _labelled(layout, *listing)
            if ours:
                _docker(*engine_host, kind, *remove_arguments, *ours)
                left = _labelled(layout, *listing)
                stayed += [f"{kind} {name}" for name in left]
                removed.append(f"{len(set(ours) - set(left))} {kind}s")
        step.done(f"removed {', '.join(removed) or 'nothing: there were none'}")
    if stayed:
        progress.note(f"  Could not be removed, and stays: {', '.join(stayed)}.")


def _labelled(layout: Layout, *listing: str) -> list[str]:
    """The names that a command lists of what carries the label of this checkout, each once."""
    found = [
        name
        for instance in _instances(layout)
        for name in _docker(*listing, "--filter", f"label=svc.instance={instance}")
    ]
    return list(dict.fromkeys(found))


def _take_rules_away(layout: Layout, engine_host: tuple[str, str, str]) -> None:
    """Have the container that keeps the network rules remove them from this machine, and end."""
    for instance in _instances(layout):
        labels = ("label=svc.network-guard", f"label=svc.instance={instance}")
        filters = [word for label in labels for word in ("--filter", label)]
        for name in _docker(*engine_host, "container", "ls", "-q", *filters):
            _docker(*engine_host, "update", "--restart", "no", name)
            _docker(*engine_host, "kill", "--signal", "USR1", name)
            _docker(*engine_host, "wait", name)


def _instances(layout: Layout) -> list[str]:
    """The label values of this checkout: its own and that of its tests."""
    derived = load_derived(layout)
    environ = current_environ()
    return [
        complete(layout, environ, derived, test=test).get("SVC_INSTANCE_ID", "")
        for test in (False, True)
    ]


def _engine(layout: Layout) -> tuple[str, str, str] | None:
    """The client's command for the engine of the last set-up, or None when it does not answer."""
    if not layout.secrets.exists():
        return None
    environ = complete(layout, current_environ(), load_derived(layout))
    host, client = environ.get("DOCKER_HOST"), environ.get("DOCKER_CLI")
    if not host or not client or engine.api_version(host) is None:
        return None
    return client, "-H", host


def _docker(*argv: str) -> list[str]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout.split() if done.returncode == 0 else []
