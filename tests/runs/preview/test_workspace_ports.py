"""The way into workspaces wherever they run: before an agent that does what a test says."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pytest_django.fixtures import Settings
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage

from runs.agent.session.channel import Frame, FrameDecoder, FromClient, ToClient, encode_frame
from runs.gateway.control_plane import ControlPlane
from runs.preview.preview_settings import PreviewSettings
from runs.preview.refusal_pages import PreviewRefused
from runs.preview.workspace_ports import WorkspacePorts
from tests.runs.gateway.scripted_engine import CONTAINER, Peer, ScriptedEngine
from tests.runs.preview.test_preview_heads import SETTINGS, WORKSPACE
from tests.stack.ssh import short_folder
from tests.support.waiting import LONG_WAIT
from tests.workspaces.runtimes.small_api_server import Request, SmallApiServer, small_api_server
from workspaces.runtimes.kubernetes.exec_wire import END_OF_INPUT, OUTPUT, SIGN_OF_LIFE

READY = {"direct": True}
"""What our agent says of itself, wherever it runs."""
Visit = Callable[[WorkspacePorts], Coroutine[Any, Any, None]]


@pytest.fixture
def server() -> Iterator[SmallApiServer]:
    """The control plane's API and a cluster's, both of them on one port."""
    with small_api_server() as server:
        yield server


def is_at(server: SmallApiServer, endpoint: str) -> PreviewSettings:
    """Have the control plane say where the workspace runs; return settings that lead to it."""

    def tell(call: Request) -> bool:
        if not call.path.endswith("/ssh-target"):
            return False
        runtime = {"endpoint": endpoint}
        known = {"workspaceId": WORKSPACE, "attemptId": str(uuid4()), "runtime": runtime}
        call.answer(200, known)
        return True

    server.faults.append(tell)
    return replace(SETTINGS, api_base_url=f"http://127.0.0.1:{server.server_address[1]}")


def visited(settings: PreviewSettings, visit: Visit) -> None:
    """Do something at the ports of the workspace."""

    async def act() -> None:
        with closing(ControlPlane(settings.api_base_url, settings.token)) as control_plane:
            ports = WorkspacePorts(settings, control_plane, WORKSPACE)
            try:
                await visit(ports)
            finally:
                ports.close()

    asyncio.run(act())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that others do."""
    async with asyncio.timeout(LONG_WAIT):
        while not condition():
            await asyncio.sleep(0.01)


class Pod:
    """An exec in a Pod: an agent to whose ports whatever is sent comes back."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.left = threading.Event()

    def serve(self, call: Request) -> bool:
        """Take an exec until its client is gone."""
        if "/pods/" not in call.path:
            return False
        call.accept_exec()
        try:
            self._converse(call)
        finally:
            self.left.set()
        call.hang_up()
        return True

    def _converse(self, call: Request) -> None:
        wire, frames, said = Connection(ConnectionType.SERVER), FrameDecoder(), b""
        while data := call.rfile.read1(65536):
            wire.receive_data(data)
            for event in wire.events():
                assert isinstance(event, BytesMessage)
                said += event.data
                if not event.message_finished:
                    continue
                channel_and_length, content, said = said[:5], said[5:], b""
                if channel_and_length[1:] == END_OF_INPUT:
                    call.connection.shutdown(socket.SHUT_WR)
                elif channel_and_length[1:] != SIGN_OF_LIFE:
                    frames.feed(content)
            while (frame := frames.take()) is not None:
                for answer in self._answers(frame):
                    message = BytesMessage(bytes((OUTPUT,)) + answer)
                    call.wfile.write(wire.send(message))

    def _answers(self, frame: Frame) -> Iterator[bytes]:
        if frame.type == FromClient.SPEC:
            yield encode_frame(ToClient.READY, 0, json.dumps(READY).encode())
        elif frame.type == FromClient.OPEN:
            self.asked.append(json.loads(frame.payload))
            yield encode_frame(ToClient.OPENED, frame.channel, b"{}")
        elif frame.type == FromClient.DATA:
            yield encode_frame(ToClient.STDOUT, frame.channel, frame.payload)


def test_a_port_of_a_pod_is_reached_through_its_agent(
    server: SmallApiServer, settings: Settings, tmp_path: Path
) -> None:
    settings.DEFAULT_RUNTIME_ADAPTER = "kubernetes"
    settings.KUBERNETES_NAMESPACE = "workspaces"
    settings.KUBERNETES_KUBECONFIG = server.kubeconfig(tmp_path)
    pod = Pod()
    server.faults.append(pod.serve)

    async def talk(ports: WorkspacePorts) -> None:
        connection = await ports.connect(8000, "ada")
        await connection.write(b"hello", LONG_WAIT)
        assert await connection.read(LONG_WAIT) == b"hello"
        ports.close()
        await until(pod.left.is_set)

    visited(is_at(server, "kubernetes-exec://workspaces/a-pod"), talk)
    assert pod.asked == [{"port": 8000, "by": "ada"}]


def test_an_agent_is_hung_up_on_whose_engine_is_forgotten_meanwhile(
    server: SmallApiServer, tmp_path: Path
) -> None:
    address = tmp_path / "far" / "address"
    address.parent.mkdir()

    def be_forgotten(peer: Peer, frame: Frame) -> bool:
        if frame.type == FromClient.SPEC:
            address.unlink()
            peer.send(ToClient.READY, 0, READY)
        return True

    async def knock(ports: WorkspacePorts) -> None:
        with pytest.raises(PreviewRefused) as refused:
            await ports.connect(8000, "ada")
        assert refused.value.code == "workspace-unreachable"
        await until(lambda: all(peer.closed for peer in engine.peers))

    with short_folder() as folder:
        engine = ScriptedEngine(folder)
        engine.behaviour = be_forgotten
        address.write_text(engine.url)
        try:
            settings = is_at(server, f"docker-exec://far/{CONTAINER}")
            visited(replace(settings, engines=tmp_path), knock)
        finally:
            engine.stop()
        assert len(engine.peers) == 1
