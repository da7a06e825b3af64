"""Where our own processes listen, and how they are reached from this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deploy.services.errors import SetupError
from deploy.services.ports import PortBook, is_free
from deploy.services.process import wait_until
from deploy.up.environment import (
    current_environ,
    load_derived,
    operator_values,
    own_origins,
    save_derived,
)
from deploy.up.layout import Layout
from deploy.up.progress import Progress


@dataclass(frozen=True)
class Listener:
    """One address that a process of ours listens on, and the setting that says its port."""

    name: str
    setting: str
    customary: int
    title: str


API = Listener("api", "SVC_API_PORT", 4000, "the API")
SSH = Listener("sshgateway", "SVC_SSH_PORT", 2222, "the SSH gateway")
PREVIEW = Listener("previewgateway", "SVC_PREVIEW_PORT", 4080, "the preview gateway")
WEB = Listener("web", "SVC_WEB_PORT", 3000, "the web")
EGRESS = Listener("egressproxy", "SVC_EGRESS_PORT", 4053, "the egress proxy")
LISTENERS = (API, SSH, PREVIEW, WEB, EGRESS)


def remembered_ports(layout: Layout) -> dict[str, str]:
    """The port of each listener as a setting: the one used before, otherwise the customary one."""
    book = PortBook(layout.ports)
    return {each.setting: str(book.get(each.name) or each.customary) for each in LISTENERS}


def refuse_taken_ports(
    layout: Layout, environ: Mapping[str, str], *, ours: Mapping[str, str]
) -> None:
    """Raise SetupError for a port that the operator asked for and another program has.

    `ours` are the settings with which processes of ours listen now.
    """
    held = {_port(ours, each) for each in LISTENERS}
    for listener in LISTENERS:
        port = _port(environ, listener)
        asked = operator_values(layout, current_environ()).get(listener.setting)
        if asked and port and port not in held and not is_free(port, _host(environ)):
            raise _taken(listener, environ)


def settle_ports(layout: Layout, environ: Mapping[str, str], progress: Progress) -> dict[str, str]:
    """The environment with ports that are free: a taken one is replaced and the new one kept.

    Raises SetupError for a taken one that the operator asked for.
    """
    settled = dict(environ)
    for listener in LISTENERS:
        port = _settle(layout, settled, listener, progress)
        settled[listener.setting] = str(port)
    if environ.get("SVC_CORS_ALLOWED_ORIGINS") == own_origins(environ):
        settled["SVC_CORS_ALLOWED_ORIGINS"] = own_origins(settled)
    return settled


def api_url(environ: Mapping[str, str]) -> str:
    """Where the API answers, as seen from this machine."""
    host = local_host(environ)
    bracketed = f"[{host}]" if ":" in host else host
    return f"http://{bracketed}:{environ.get(API.setting) or API.customary}"


def admin_url(environ: Mapping[str, str]) -> str:
    """Where the admin answers: at a port of its own, or at the API's."""
    port = environ.get("SVC_ADMIN_PORT") or "0"
    if port == "0":
        return f"{api_url(environ)}/admin/"
    host = local_host({"SVC_BIND_HOST": environ.get("SVC_ADMIN_BIND_HOST") or ""})
    return f"http://[{host}]:{port}/admin/" if ":" in host else f"http://{host}:{port}/admin/"


def ssh_port(environ: Mapping[str, str]) -> int:
    """The port of the SSH gateway."""
    return int(environ.get(SSH.setting) or SSH.customary)


def ssh_host(environ: Mapping[str, str]) -> str:
    """The SSH gateway's host as people are told it."""
    return environ.get("SVC_SSH_HOST") or "localhost"


def ssh_user(environ: Mapping[str, str], workspace_id: str) -> str:
    """The user name that enters a workspace."""
    return f"{environ.get('SSH_GATEWAY_WORKSPACE_USERNAME_PREFIX') or 'ws'}-{workspace_id}"


def local_host(environ: Mapping[str, str]) -> str:
    """The address under which this machine reaches what listens on `SVC_BIND_HOST`."""
    host = environ.get("SVC_BIND_HOST") or "127.0.0.1"
    every = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound
    return every.get(host, host)


def _settle(
    layout: Layout, environ: Mapping[str, str], listener: Listener, progress: Progress
) -> int:
    setting = listener.setting
    port = _port(environ, listener)
    if listener in (WEB, EGRESS) and port == 0:
        return port  # the operator wants none
    # The processes of a moment ago may still be letting go of it.
    if wait_until(lambda: is_free(port, _host(environ)), 3):
        return port
    if operator_values(layout, current_environ()).get(setting):
        raise _taken(listener, environ)
    chosen = PortBook(layout.ports).replace(listener.name)
    progress.note(
        f"  Port {port} is taken by another program: {listener.title} listens on {chosen}."
    )
    save_derived(layout, {**load_derived(layout), setting: str(chosen)})
    return chosen


def _host(environ: Mapping[str, str]) -> str:
    return environ.get("SVC_BIND_HOST") or "127.0.0.1"


def _port(environ: Mapping[str, str], listener: Listener) -> int:
    return int(environ.get(listener.setting) or listener.customary)


def _taken(listener: Listener, environ: Mapping[str, str]) -> SetupError:
    port = _port(environ, listener)
    return SetupError(
        f"{listener.setting} says {port}, but something else listens on {_host(environ)}:{port}."
    )
