"""The whole service for the commands of the documentation, and a person's machine beside it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.clients.places import python_path
from tests.docs.pages import ROOT
from tests.docs.shell import Shell
from tests.stack.free_ports import free_port
from tests.stack.gateway_process import ApiProcess, GatewayProcess
from tests.stack.preview_process import PreviewProcess
from tests.stack.service import Stack
from tests.stack.ssh import short_folder
from tests.stack.worker_process import environment

API_PORT, SSH_PORT, PREVIEW_PORT = "4000", "2222", "4080"
"""What the pages call the ports of the API and of the two gateways."""

_CLIENT = """\
#!/bin/sh
# The person's own configuration: OpenSSH looks for it in the home of the account, not in $HOME.
touch "$HOME/.ssh/config"
sed "s|~/|$HOME/|g" "$HOME/.ssh/config" >"$HOME/.ssh/read"
exec {program} -F "$HOME/.ssh/read" \\
    -o UserKnownHostsFile="$HOME/.ssh/known_hosts" -o GlobalKnownHostsFile=/dev/null \\
    -o IdentityFile="$HOME/.ssh/id_ed25519" -o IdentitiesOnly=yes -o IdentityAgent=none \\
    -o UpdateHostKeys=no -o BatchMode=yes "$@"
"""


@dataclass
class Site:
    """A running service, as its people and its operator see it."""

    stack: Stack
    api: ApiProcess
    gateway: GatewayProcess
    preview: PreviewProcess
    environ: dict[str, str]

    @contextlib.contextmanager
    def shell(self) -> Iterator[Shell]:
        """A shell in what looks like a checkout, for somebody with an empty home."""
        with short_folder() as home:
            checkout = home / "checkout"
            checkout.mkdir()
            for path in ROOT.iterdir():
                if not path.name.startswith("."):
                    (checkout / path.name).symlink_to(path)
            python = Path(sys.executable).parent
            programs = os.pathsep.join([str(_programs(home)), str(python), os.environ["PATH"]])
            shell = Shell(checkout, self.environ | {"HOME": str(home), "PATH": programs})
            try:
                yield shell
            finally:
                shell.close()
                # A master that carries several sessions has left its shell's group.
                for socket in (home / ".ssh").glob("control-*"):
                    master = ["ssh", "-F", "none", "-S", str(socket), "-O", "exit", "any"]
                    subprocess.run(master, check=False, capture_output=True)

    def typed(self, command: str) -> str:
        """Return a command of a page with the ports of this service."""
        command = re.sub(
            rf"\b(localhost|127\.0\.0\.1):{API_PORT}\b", rf"\1:{self.api.port}", command
        )
        command = re.sub(rf"(?<=[\s:]){SSH_PORT}\b", str(self.gateway.port), command)
        return re.sub(rf"(?<=:){PREVIEW_PORT}\b", str(self.preview.port), command)

    def shown(self, printed: str) -> str:
        """Return what a command printed with the ports of the pages."""
        printed = re.sub(rf"(?<=:){self.api.port}\b", API_PORT, printed)
        printed = re.sub(rf"(?<=:){self.preview.port}\b", PREVIEW_PORT, printed)
        return re.sub(rf"(?<=:){self.gateway.port}\b", SSH_PORT, printed)


def _programs(home: Path) -> Path:
    (home / ".ssh").mkdir(mode=0o700)
    programs = home / "bin"
    programs.mkdir()
    for name in ("ssh", "scp", "sftp"):
        (programs / name).write_text(_CLIENT.format(program=f"/usr/bin/{name}"))
        (programs / name).chmod(0o755)
    (programs / "svc").write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(python_path())} "
        f'exec {shlex.quote(sys.executable)} -m controlplane_cli.main "$@"\n'
    )
    (programs / "svc").chmod(0o755)
    return programs


@contextlib.contextmanager
def site_of(stack: Stack, folder: Path) -> Iterator[Site]:
    """Serve the API and the gateways beside a stack with its workers."""
    token = {
        "WORKSPACE_SSH_GATEWAY_TOKEN": "the-gateway-of-the-pages",
        # As `make up` has it.
        "SVC_CORS_ALLOWED_ORIGINS": f"http://localhost:{API_PORT}",
    }
    with contextlib.ExitStack() as rest:
        preview = {"SVC_PREVIEW_PORT": str(free_port())}
        api = ApiProcess(
            folder / "api.log", SVC_SSH_PORT=SSH_PORT, SVC_WEB_PORT="0", **token, **preview
        )
        rest.callback(api.stop)
        gateway = GatewayProcess(
            folder / "gateway.log", api=api.url, host_key=folder / "ssh" / "key", **token
        )
        rest.callback(gateway.stop)
        pages = PreviewProcess(folder / "preview.log", api=api.url, **token, **preview)
        rest.callback(pages.stop)
        environ = environment(SVC_DATA_DIR=str(folder / "data"), LC_ALL="C.UTF-8", **token)
        yield Site(stack, api, gateway, pages, environ)
