"""The settings our own processes get: what the operator set, over what the set-up found out."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from deploy.up.layout import Layout
from deploy.up.secrets import read_settings, write_private

_CA_FOLDER = Path("/usr/local/share/ca-certificates")
# Inherited from `make`, these would change what a `make` inside a process of ours does.
_NOT_INHERITED = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MAKE_TERMERR")
_OURS = re.compile(
    r"(SVC|WORKSPACE|WORKER|REGISTRY|RABBITMQ|DATABASE|DOCKER|CONTAINER_SOCKET|WEB|CORS|SSH_GATEWAY"
    r"|DEFAULT_RUNTIME|DJANGO)_[A-Z0-9_]+\Z"
)


def operator_values(layout: Layout, environ: Mapping[str, str]) -> dict[str, str]:
    """What the operator decides: the environment over `.data/.env`; empty means not set."""
    values = read_settings(layout.secrets)
    values.update({name: value for name, value in environ.items() if value})
    return values


_LIMITS_OF_TIME = (
    "DATABASE_IDLE_TRANSACTION_TIMEOUT_MS",
    "RABBITMQ_CONNECT_TIMEOUT_MS",
    *("REGISTRY_CONNECT_TIMEOUT_MS", "REGISTRY_READ_TIMEOUT_MS", "REGISTRY_TOTAL_TIMEOUT_MS"),
    *("SCM_API_CONNECT_TIMEOUT_MS", "SCM_API_READ_TIMEOUT_MS", "SCM_API_TOTAL_TIMEOUT_MS"),
)
"""A test in which one of these is to be met says so; a machine that is slow meets none."""


def complete(
    layout: Layout, environ: Mapping[str, str], derived: Mapping[str, str], *, test: bool = False
) -> dict[str, str]:
    """The whole environment of a process: the operator's values over the derived ones.

    With `test`, an instance and a queue of its own, so that a running system neither takes a
    test's work nor removes its containers, nor the other way round.
    """
    values = {**derived, **operator_values(layout, environ)}
    values["SVC_DATA_DIR"] = str(layout.data)
    if test:
        values["SVC_INSTANCE_ID"] = f"{values['SVC_INSTANCE_ID']}-test"
        queue = values.get("WORKSPACE_BUILD_QUEUE", "sandbox-image-builds")
        values["WORKSPACE_BUILD_QUEUE"] = f"{queue}.test"
        # Many a test serves the API on a port of its own.
        values["SVC_WEB_PORT"] = "0"
        for name in _LIMITS_OF_TIME:
            values.setdefault(name, "300000")
    elif not values.get("CORS_ALLOWED_ORIGINS"):
        # The default lets every page read, which suits an API that others find and no workstation.
        values.setdefault("SVC_CORS_ALLOWED_ORIGINS", own_origins(values))
    return {name: value for name, value in values.items() if name not in _NOT_INHERITED}


def own_origins(values: Mapping[str, str]) -> str:
    """The origins of our own pages on this machine, as `SVC_CORS_ALLOWED_ORIGINS` takes them."""
    ports = [values.get("SVC_WEB_PORT") or "3000", values.get("SVC_API_PORT") or "4000"]
    return ",".join(
        f"http://{host}:{port}"
        for port in dict.fromkeys(ports)
        for host in ("localhost", "127.0.0.1")
        if port != "0"
    )


def save_derived(layout: Layout, derived: Mapping[str, str]) -> None:
    """Keep what the set-up found out for `env`, `run` and `status`; unchanged files stay as are."""
    text = "# Written by the set-up each time; settings of your own belong into .env.\n"
    text += "".join(f"{name}={value}\n" for name, value in sorted(derived.items()))
    if not layout.environment.exists() or layout.environment.read_text() != text:
        write_private(layout.environment, text)


def load_derived(layout: Layout) -> dict[str, str]:
    """What the last set-up found out; empty before the first one."""
    return read_settings(layout.environment)


def settings_only(values: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that means something to this project."""
    return {name: value for name, value in sorted(values.items()) if _OURS.match(name)}


def shell_exports(values: Mapping[str, str]) -> str:
    """Lines that a shell can evaluate."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def bundle_extra_ca(layout: Layout, folder: Path = _CA_FOLDER) -> str | None:
    """One file with every authority that this machine's operator added, or None without any."""
    certificates = sorted(folder.glob("**/*.crt")) if folder.is_dir() else []
    text = "".join(f"{path.read_text().strip()}\n" for path in certificates)
    if not text:
        return None
    bundle = layout.data / "extra-ca.crt"
    if not bundle.exists() or bundle.read_text() != text:
        bundle.write_text(text)
        bundle.chmod(0o644)
    return str(bundle)


def current_environ() -> dict[str, str]:
    """The caller's environment as a plain dictionary."""
    return dict(os.environ)
