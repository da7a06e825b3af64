"""Requests per second through a preview port against the same server reached directly.

The server is the kind that people start while they develop: Python's own, with threads, in a
workspace. Directly it is reached at the container's address; both ways by the same client.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import docker
from django.conf import settings
from django.test import override_settings

from controlplane.security.preview_links import TOKEN_HEADER, Grant, sign, signing_key
from runs.agent_archive import agent_archive, agent_digest
from tests.bench.figures import Figure
from tests.runs.ready import ready_attempt
from tests.stack.gateway_process import ApiProcess
from tests.stack.preview_process import PreviewProcess
from tests.workspaces import conftest as launching
from workspaces.models import RuntimeInstance
from workspaces.runtimes.docker import DockerAdapter

PORT = 8090
CLIENTS = 8
SECONDS = 4.0
ROUNDS = 3
TARGET = 0.5
TOKEN = "the-gateway-of-the-benchmark"
SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "1024")
        self.end_headers()
        self.wfile.write(b"x" * 1024)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8090), Handler).serve_forever()
"""


async def _rate(host: str, port: int, head: bytes) -> float:
    """Return how many requests a second are answered over kept connections."""
    until = time.monotonic() + SECONDS
    counts = [0]

    async def ask() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        while time.monotonic() < until:
            writer.write(head)
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise AssertionError(answer)
            await reader.readexactly(1024)
            counts[0] += 1
        writer.close()

    await asyncio.gather(*(ask() for _ in range(CLIENTS)))
    return counts[0] / SECONDS


def measure() -> Iterator[Figure]:
    """Give the figure."""
    client = docker.DockerClient(base_url=launching.DOCKER_HOST, timeout=120)
    instance, run_id = str(uuid4()), uuid4()
    dockerfile = launching.DOCKERFILE.encode()
    context = launching.tar_of(Dockerfile=dockerfile, svc_agent=agent_archive())
    image = launching.published(client, context, tag=agent_digest()[:32])
    adapter = DockerAdapter(launching.DOCKER_HOST, instance, settings.SVC_WORKSPACE_NETWORK_POOL)
    launcher = launching.Launcher(adapter, client, image, instance)
    request = launcher.request(run_id, memory_mb=1024, cpus=2.0, outbound=True)
    runtime = launcher.launch(request)
    try:
        yield _measured(launcher, runtime, run_id)
    finally:
        adapter.remove(run_id)
        client.close()


def _measured(launcher: launching.Launcher, runtime: Any, run_id: Any) -> Figure:
    container = launcher.container(runtime)
    container.exec_run(["python3", "-c", SERVER], user="workspace", detach=True)
    (network,) = container.attrs["NetworkSettings"]["Networks"].values()
    address = network["IPAddress"]
    attempt = ready_attempt()
    RuntimeInstance.objects.filter(attempt=attempt).update(
        run_id=run_id, resource_id=runtime.resource_id, endpoint=runtime.endpoint
    )
    token = {"WORKSPACE_SSH_GATEWAY_TOKEN": TOKEN}
    with tempfile.TemporaryDirectory() as folder, override_settings(**token):
        api = ApiProcess(Path(folder, "api.log"), **token)
        gateway = PreviewProcess(
            Path(folder, "preview.log"), api=api.url, SVC_PREVIEW_DOMAIN="localhost", **token
        )
        grant = Grant(
            kind="link",
            workspace_id=str(attempt.workspace_id),
            port=PORT,
            owner=attempt.workspace.owner_user_id,
            expires_at=int(time.time()) + 3600,
        )
        link = sign(grant, signing_key(TOKEN))
        host = f"{PORT}-{attempt.workspace_id}.localhost"
        head = f"GET / HTTP/1.1\r\nHost: {host}\r\n{TOKEN_HEADER}: {link}\r\n\r\n".encode()
        try:
            ours, direct = [], []
            for _ in range(ROUNDS):
                direct.append(asyncio.run(_rate(address, PORT, head)))
                ours.append(asyncio.run(_rate("127.0.0.1", gateway.port, head)))
        finally:
            gateway.stop()
            api.stop()
    ratio = median(ours) / median(direct)
    return Figure(
        f"HTTP through a preview port, {CLIENTS} clients, beside the same server directly",
        f"{median(ours):.0f}/s",
        f"{median(direct):.0f}/s",
        ratio,
        f">= {TARGET}x",
        ratio >= TARGET,
    )
