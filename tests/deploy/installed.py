"""An installation that runs, as its owner and its operator use it."""

from __future__ import annotations

import base64
import json
import socket
import struct
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import docker
import requests
from docker.models.containers import Container

from tests.deploy.installation import Installation
from tests.support.waiting import LONG_WAIT

OWNER = "usr_install"
BLUEPRINT = {
    "harness": {"id": "shell"},
    "lifecycle": {"startup": {"foreground": {"kind": "command", "run": "sleep infinity"}}},
}
POLICY = {"rules": [{"hosts": ["allowed.test"], "ports": [80]}]}
SECONDS = 600.0
ON_THE_WAY = ("queued", "running", "pending", "building", "starting")
_NETLINK_NETFILTER = 12  # linux/netlink.h


@dataclass
class Installed:
    """An installation that runs, and a workspace in it."""

    installation: Installation
    engine: docker.DockerClient
    workspace_id: str = ""
    limited_id: str = ""
    made: int = 0

    @property
    def instance(self) -> str:
        return self.installation.settings["SVC_INSTANCE_ID"]

    def make_whole(self) -> None:
        """Repair what a test that failed has left, and have a workspace that is ready."""
        if (self.installation.home / ".upgrade").exists() or not self._is_well():
            done = self.installation.run(
                "install", "--min-free-mb", "500", "--wait", str(int(LONG_WAIT)), seconds=1500
            )
            assert done.returncode == 0, done.stdout + done.stderr
        if not self._is_ready(self.workspace_id):
            self.workspace_id = self._made(BLUEPRINT)
            self.run_in_workspace("echo kept > ~/kept")

    def limited(self) -> str:
        """Return the id of a workspace that may reach one host only."""
        if not self._is_ready(self.limited_id):
            self.limited_id = self._made({**BLUEPRINT, "runtime": {"network": {"egress": POLICY}}})
        return self.limited_id

    def _made(self, spec: dict[str, Any]) -> str:
        self.made += 1
        workspace_id = self.asked(f"made-{self.made}", spec)
        ready = self.settled(f"/v1/workspaces/{workspace_id}", *ON_THE_WAY)
        assert ready["status"] == "ready", ready
        return workspace_id

    def _is_well(self) -> bool:
        try:
            return all(self.readiness().values())
        except (AssertionError, OSError):
            return False

    def _is_ready(self, workspace_id: str) -> bool:
        if not workspace_id:
            return False
        return bool(self.owned(f"/v1/workspaces/{workspace_id}")["status"] == "ready")

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the API; anything but success is a failure."""
        port = self.installation.settings["SVC_API_PORT"]
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310 - http
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def owned(self, path: str) -> Any:
        """Read something of the owner's."""
        return self.call("GET", f"{path}?ownerUserId={OWNER}")

    def settled(self, path: str, *open_states: str) -> Any:
        """Read something until its status is not one of these any more."""
        deadline = time.monotonic() + SECONDS
        while (found := self.owned(path))["status"] in open_states:
            assert time.monotonic() < deadline, found
            time.sleep(0.5)
        return found

    def asked(self, name: str, spec: dict[str, Any]) -> str:
        """Ask for a workspace; return its id."""
        body = {
            "ownerUserId": OWNER,
            "name": name,
            "registryId": "default",
            "repository": f"workspaces/{name}",
            "tag": "one",
            "spec": spec,
        }
        return str(self.call("POST", "/v1/workspaces", body)["workspaceId"])

    def service(self, name: str) -> Container:
        """The container of a service."""
        labels = [
            f"com.docker.compose.project={self.instance}",
            f"com.docker.compose.service={name}",
        ]
        (found,) = self.engine.containers.list(
            all=True, filters={"label": labels}, ignore_removed=True
        )
        return found

    def workspace(self, workspace_id: str = "") -> Container:
        """The container of the workspace, or of another one."""
        wanted = workspace_id or self.workspace_id
        labels = [f"svc.instance={self.instance}", f"svc.workspace={wanted}"]
        (found,) = self.engine.containers.list(
            all=True, filters={"label": labels}, ignore_removed=True
        )
        return found

    def run_in_workspace(self, script: str, workspace_id: str = "") -> str:
        """Have a one-shot run do something; return what it printed."""
        body = {
            "ownerUserId": OWNER,
            "workspaceId": workspace_id or self.workspace_id,
            "harnessId": "shell",
            "mode": "one-shot",
            "command": {"executable": "sh", "args": ["-c", script]},
        }
        run_id = self.call("POST", "/v1/runs", body)["runId"]
        ended = self.settled(f"/v1/runs/{run_id}", "queued", "running")
        assert (ended["status"], ended["exitCode"]) == ("completed", 0), ended
        query = f"ownerUserId={OWNER}&stream=stdout"
        told = self.call("GET", f"/v1/runs/{run_id}/scrollback?{query}")
        return base64.b64decode(told["contentBase64"]).decode()

    def page_in(self, workspace_id: str, host: str) -> str:
        """Ask a host for a page inside a workspace; empty when it cannot be had."""
        request = f"GET / HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n"
        ask = f"exec 3<>/dev/tcp/{host}/80 && printf '{request}' >&3 && cat <&3"
        return self.run_in_workspace(f'bash -c "{ask}" 2>/dev/null; true', workspace_id)

    def decided_in(self, workspace_id: str) -> list[str]:
        """What the record of a workspace says that the egress proxy has decided."""
        owned = f"ownerUserId={OWNER}"
        boots = self.call("GET", f"/v1/runs?{owned}&mode=boot&workspaceId={workspace_id}")
        path = f"/v1/runs/{boots['items'][0]['runId']}/timeline"
        told = self.call("GET", f"{path}?{owned}&kinds=egressDecided")
        return [event["summary"] for event in told["items"]]

    def registry_status(self, password: str = "") -> int:
        """Ask the registry what it holds, as somebody on this machine may."""
        port = self.installation.settings["SVC_REGISTRY_PORT"]
        url = f"http://127.0.0.1:{port}/v2/_catalog"
        account = ("svc", password) if password else None
        return requests.get(url, auth=account, timeout=60).status_code

    def becomes_ready(self) -> None:
        """Return once `/readyz` calls all parts well: workers look at some every 15 seconds."""
        deadline = time.monotonic() + SECONDS
        while not all((told := self.readiness()).values()):
            assert time.monotonic() < deadline, told
            time.sleep(0.5)

    def readiness(self) -> dict[str, bool]:
        """What `/readyz` says of each part."""
        return {check["name"]: check["ok"] for check in self.call("GET", "/readyz")["checks"]}


def rules_of_the_kernel() -> bytes:
    """The names of all tables of nftables on this machine, as the kernel lists them."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
        # NFT_MSG_GETTABLE for a dump (linux/netfilter/nf_tables.h), of every family.
        kernel.send(struct.pack("=IHHIIBBH", 20, 10 << 8 | 1, 0x301, 1, 0, 0, 0, 0))
        listed = b""
        while True:
            part = kernel.recv(1 << 20)
            listed += part
            if struct.unpack_from("=IH", part)[1] == 3:  # NLMSG_DONE
                return listed
