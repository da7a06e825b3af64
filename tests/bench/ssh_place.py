"""A workspace with two ways in: our gateway and OpenSSH's ``sshd``, in one container.

``sshd`` is the distribution's, as its package configures it, and is reached at the container's own
address, so that nothing but the kernel's bridge lies between it and the client. Everything of ours
runs as after ``make demo``. Both let the same key in, as the same user.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from django.conf import settings

from runs.models import Run
from runs.run_messages import RUN_REQUESTED
from tests.bench.figures import log_folder
from tests.bench.served import OWNER, SHELL, served
from tests.stack.free_ports import free_port
from tests.stack.worker_process import CommandProcess, eventually
from tests.support import queues
from tests.support.waiting import LONG_WAIT

USER = "workspace"
SSHD_PORT = 2022
PROMPT = b"bench> "
CIPHER = "aes128-gcm@openssh.com"
"""What both speak where nothing else is said: the fastest one that both have."""
FILE = "/var/tmp/bench.log"
RANDOM_FILE = "/var/tmp/bench.random"
MEMORY_MB = 12_288
PIDS = 8_192

BLUEPRINT = {
    **SHELL,
    "tooling": {"packages": [{"id": "openssh-server"}]},
    # For everybody who enters, however: a prompt that can be told from anything else.
    "lifecycle": {
        "setup": [{"id": "prompt", "run": f"echo \"PS1='{PROMPT.decode()}'\" >> ~/.bashrc"}]
    },
    "runtime": {"resources": {"memoryMb": MEMORY_MB, "pids": PIDS}},
}
_SSHD = """\
set -e
install -d -m 0755 /run/sshd
ssh-keygen -A > /dev/null
install -d -m 0700 -o workspace -g workspace /home/workspace/.ssh
printf '%s\\n' "$1" > /home/workspace/.ssh/authorized_keys
chown workspace:workspace /home/workspace/.ssh/authorized_keys
"""
_LINES = f"""
import os, sys
size = int(sys.argv[1])
lines = b"".join(
    b"2026-01-02T03:04:05.%06dZ INFO worker: job %d done in %d ms, state=ok\\n"
    % (number, number * 7919, number % 977)
    for number in range(20_000)
)
with open("{FILE}", "wb") as log, open("{RANDOM_FILE}", "wb") as noise:
    while log.tell() < size:
        log.write(lines[: size - log.tell()])
    for _ in range(size >> 20):
        noise.write(os.urandom(1 << 20))
"""


@dataclass(frozen=True)
class Side:
    """One way into the workspace, with everything an OpenSSH client must be told."""

    name: str
    host: str
    port: int
    user: str
    folder: Path

    def ssh(self, *arguments: str, cipher: str | None = CIPHER) -> list[str]:
        """Return a command line of ``ssh``: its options, perhaps ``--``, and a command.

        Without a cipher the two ends agree on what they like best.
        """
        options = {
            "User": self.user,
            "Port": self.port,
            "IdentityFile": self.folder / "key",
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "UserKnownHostsFile": self.folder / "known_hosts",
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "accept-new",
            "HostKeyAlgorithms": "ssh-ed25519",
            "BatchMode": "yes",
            "LogLevel": "ERROR",
            **({"Ciphers": cipher} if cipher else {}),
        }
        words = [f"-o{name}={value}" for name, value in options.items()]
        own = [word for word in arguments if word.startswith("-")]
        command = list(arguments[len(own) :])
        return ["ssh", "-F", "none", *words, *own, self.host, *command]


@dataclass(frozen=True)
class Place:
    """The workspace and the ways in."""

    sshd: Side
    recorded: Side
    unrecorded: Side
    container: Any
    worker: CommandProcess
    start_gateway: Callable[[str], tuple[Side, CommandProcess]]
    """Start one more gateway, with this policy of recording; it is stopped in the end."""

    @property
    def sides(self) -> tuple[Side, ...]:
        """All ways in; the first one is the floor."""
        return (self.sshd, self.recorded, self.unrecorded)

    def rest(self, timeout: float = LONG_WAIT) -> None:
        """Wait until every record is written, so that what comes next is not slowed by it."""
        eventually(
            lambda: not _open_sessions().exists(),
            what="the sessions' runs have ended",
            timeout=timeout,
            every=0.02,
        )


def _open_sessions() -> Any:
    final = (Run.Status.COMPLETED, Run.Status.FAILED, Run.Status.CANCELLED)
    return Run.objects.filter(mode=Run.Mode.INTERACTIVE).exclude(status__in=final)


@contextmanager
def place(size: int) -> Iterator[Place]:
    """Start the whole service, a workspace in it, ``sshd`` in that, and both gateways.

    ``size`` is that of the files to copy, in bytes.
    """
    os.environ.setdefault("WORKSPACE_SSH_GATEWAY_TOKEN", uuid.uuid4().hex)
    settings.WORKSPACE_RUN_QUEUE = f"workspace-run-executions-bench-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        api = stack.enter_context(served())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="svc-bench-ssh-")))
        stack.callback(
            queues.purge_and_delete,
            settings.RABBITMQ_URL,
            RUN_REQUESTED.topology(),
            timeout=LONG_WAIT,
        )
        processes = [CommandProcess(log_folder() / "runworker.log", "runworker")]
        stack.callback(lambda: [process.stop() for process in processes])
        public = _key(folder / "key")
        api.ask("POST", "/v1/ssh-keys", {"ownerUserId": OWNER, "publicKey": public})
        started = api.start(BLUEPRINT)
        api.settled(started, "ready", every=0.1)
        engine = stack.enter_context(
            contextlib.closing(docker.DockerClient(settings.DOCKER_HOST, timeout=int(LONG_WAIT)))
        )
        container = engine.containers.get(f"svc-{started['runId']}")
        networks = container.attrs["NetworkSettings"]["Networks"].values()
        address = next(network["IPAddress"] for network in networks)
        user = f"{settings.SSH_GATEWAY_WORKSPACE_USERNAME_PREFIX}-{started['workspaceId']}"

        def start_gateway(policy: str) -> tuple[Side, CommandProcess]:
            port = free_port()
            process = CommandProcess(
                log_folder() / f"gateway-{port}.log",
                "sshgateway",
                SVC_SSH_PORT=str(port),
                SVC_DATA_DIR=str(folder),
                SSH_GATEWAY_API_BASE_URL=f"http://127.0.0.1:{api.connection.port}",
                SSH_GATEWAY_HOST_KEY_PATH=str(folder / "host_key"),
                SSH_GATEWAY_RECORD_POLICY=policy,
            )
            processes.append(process)
            name = "recorded" if policy == "require" else "unrecorded"
            side = Side(name, "127.0.0.1", port, user, folder)
            _wait(side)
            return side, process

        sshd = Side("sshd", address, SSHD_PORT, USER, folder)
        _start_sshd(container, public, size)
        _wait(sshd)
        recorded, _ = start_gateway("require")
        unrecorded, _ = start_gateway("off")
        yield Place(sshd, recorded, unrecorded, container, processes[0], start_gateway)


def _start_sshd(container: Any, public: str, size: int) -> None:
    """Let the key in, write what is to be copied, and start ``sshd``."""
    for command in (
        ["sh", "-c", _SSHD, "sh", public],
        ["python3", "-c", _LINES, str(size)],
        # As many as the gateway lets in at once; everything else as the package has it.
        ["/usr/sbin/sshd", "-p", str(SSHD_PORT), "-o", "MaxStartups=200"],
    ):
        code, output = container.exec_run(command, user="root")
        if code:
            raise RuntimeError(f"{command[0]} failed in the workspace: {output!r}")


def _key(path: Path) -> str:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bench", "-f", str(path)]
    subprocess.run(command, check=True)
    return path.with_suffix(".pub").read_text()


def _wait(side: Side) -> None:
    """Wait until a command can be executed there; the host key is known from then on."""

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((side.host, side.port), 1):
            return True
        return False

    eventually(listens, what=f"{side.name} listens")
    deadline = time.monotonic() + LONG_WAIT
    while True:
        done = subprocess.run(side.ssh("true"), capture_output=True, check=False, text=True)
        if done.returncode == 0:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{side.name} does not let us in: {done.stderr}")
        time.sleep(0.2)
