"""A session in the demo's workspace, over SSH and with the client that people use."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path

from deploy.services.errors import SetupError
from deploy.up.addresses import local_host, ssh_host, ssh_port, ssh_user
from deploy.up.api import Api, RefusedError
from deploy.up.demo_record import recorded, show_record, wait_completed
from deploy.up.layout import Layout
from deploy.up.progress import Progress

_COMMAND = 'echo "a terminal: $(tty), $(stty size), for $(whoami) on $TERM"; cat hello.txt'
_ROWS, _COLUMNS = 24, 80
_SECONDS = 60.0


def show(
    layout: Layout,
    api: Api,
    workspace_id: str,
    environ: Mapping[str, str],
    progress: Progress,
) -> None:
    """Enter the workspace, run a command on a terminal, show the record, and say how to do it."""
    user = ssh_user(environ, workspace_id)
    key = ensure_key(layout, api)
    known_hosts = write_known_hosts(layout, environ)
    options = client_options(key, known_hosts, ssh_port(environ))
    progress.note(f"\nA session in it, over SSH: ssh -t … {user}@{ssh_host(environ)} {_COMMAND!r}")
    careful = ["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
    here = f"{user}@{local_host(environ)}"
    with progress.step("session") as step:
        code, seen, said = on_terminal(["ssh", "-t", *careful, *options, here, _COMMAND])
        if code != 0:
            raise SetupError(f"ssh ended with {code}:\n{said.strip()}\n{seen.decode()}")
        step.done(f"ended, {len(seen)} bytes seen")
    run_id = _session_run(api, workspace_id)
    wait_completed(api, run_id, "its run", progress)
    if environ.get("SSH_GATEWAY_RECORD_POLICY") == "off":
        progress.note("  SSH_GATEWAY_RECORD_POLICY is off: there is no record of it.")
    else:
        held = recorded(api, run_id, "pty")
        if held != seen:
            raise SetupError(f"The record holds {held!r}, but the client saw {seen!r}.")
        show_record(api, run_id, ("pty",), progress)
    login = shlex.join(["ssh", *options, f"{user}@{ssh_host(environ)}"])
    progress.note(
        f"\nEnter it yourself:\n  {login}\n\n{_client_block(environ, user, key, known_hosts)}"
    )


def client_options(key: Path, known_hosts: Path, port: int) -> list[str]:
    """The options with which ``ssh`` enters a workspace with this key, wherever the files are."""
    return [
        *("-i", str(key), "-o", "IdentitiesOnly=yes"),
        # ssh takes several files there, with spaces between them.
        *("-o", f'UserKnownHostsFile="{known_hosts}"', "-p", str(port)),
    ]


def ensure_key(layout: Layout, api: Api) -> Path:
    """The demo's own key pair, made once, and registered for the owner.

    A pair that another owner has registered is replaced.
    """
    path = layout.data / "ssh" / "demo_ed25519"
    try:
        _register(path, api)
    except RefusedError as error:
        if error.code != "ssh-key-taken":
            raise
        path.unlink()
        _register(path, api)
    return path


def write_known_hosts(layout: Layout, environ: Mapping[str, str]) -> Path:
    """A file by which a client knows the gateway of this machine, read from its host key."""
    given = environ.get("SSH_GATEWAY_HOST_KEY_PATH")
    host_key = Path(given) if given else layout.data / "ssh" / "host_ed25519_key"
    port = ssh_port(environ)
    names = dict.fromkeys([ssh_host(environ), local_host(environ)])
    shown = ",".join(name if port == 22 else f"[{name}]:{port}" for name in names)
    path = layout.data / "ssh" / "known_hosts"
    path.write_text(f"{shown} {_public_half(layout.checkout / host_key)}\n")
    return path


def on_terminal(argv: list[str]) -> tuple[int, bytes, str]:
    """Run a program on a terminal of its own; its exit code, what the terminal showed, and what
    it wrote to standard error, which is not that terminal. Raises SetupError when it hangs."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (_ROWS, _COLUMNS))
    environ = {**os.environ, "TERM": "xterm-256color"}
    with open(controller, "rb", buffering=0) as screen:  # noqa: PTH123 - a descriptor
        try:
            process = subprocess.Popen(
                argv,
                stdin=terminal,
                stdout=terminal,
                stderr=subprocess.PIPE,
                env=environ,
                start_new_session=True,
            )
        except OSError as error:
            raise SetupError(f"{argv[0]} cannot be run: {error.strerror}.") from error
        finally:
            os.close(terminal)
        with process:
            seen, said = _both(screen.fileno(), process)
    return process.returncode, seen, said.decode(errors="replace")


def _both(screen: int, process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Everything until both ends are closed, or a SetupError when that takes too long."""
    assert process.stderr is not None
    errors = process.stderr.fileno()
    text = {screen: bytearray(), errors: bytearray()}
    open_ones = set(text)
    deadline = time.monotonic() + _SECONDS
    while open_ones:
        ready, _, _ = select.select(open_ones, (), (), max(0.0, deadline - time.monotonic()))
        if not ready:
            process.kill()
            said = bytes(text[errors]).decode(errors="replace")
            raise SetupError(f"{process.args!r} has not ended after {_SECONDS:.0f} s.\n{said}")
        for descriptor in ready:
            try:
                piece = os.read(descriptor, 65536)
            except OSError:  # Linux tells the end of a terminal so
                piece = b""
            text[descriptor] += piece
            if not piece:
                open_ones.discard(descriptor)
    return bytes(text[screen]), bytes(text[errors])


def _register(path: Path, api: Api) -> None:
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "demo", "-f", str(path)]
        path.with_suffix(".pub").unlink(missing_ok=True)
        _output(made)
    body = {"ownerUserId": api.owner, "name": "demo", "publicKey": _public_half(path)}
    api.call("POST", "/v1/ssh-keys", body)


def _public_half(path: Path) -> str:
    """The public half of a private key, as one line."""
    return " ".join(_output(["ssh-keygen", "-y", "-P", "", "-f", str(path)]).split()[:2])


def _session_run(api: Api, workspace_id: str) -> str:
    """The id of the newest session in the workspace."""
    for run in api.get("/v1/runs", workspaceId=workspace_id)["items"]:
        if run["harnessId"] == "ssh":
            return str(run["runId"])
    raise SetupError("The session left no run.")


def _client_block(environ: Mapping[str, str], user: str, key: Path, known_hosts: Path) -> str:
    return (
        "Or with these lines in ~/.ssh/config, and then `ssh hello`, `scp file hello:` and so on "
        "(docs/users/ssh.md):\n"
        "  Host hello\n"
        f"      HostName {ssh_host(environ)}\n"
        f"      Port {ssh_port(environ)}\n"
        f"      User {user}\n"
        f'      IdentityFile "{key}"\n'
        "      IdentitiesOnly yes\n"
        f'      UserKnownHostsFile "{known_hosts}"\n'
        "      ServerAliveInterval 30"
    )


def _output(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise SetupError(f"`{shlex.join(argv)}` failed: {done.stderr.strip()}")
    return done.stdout.strip()
