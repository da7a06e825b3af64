"""An installation that runs, as its owner and its operator use it."""

from __future__ import annotations

import base64
import json
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
SECONDS = 600.0
ON_THE_WAY = ("queued", "running", "pending", "building", "starting")


@dataclass
class Installed:
    """An installation that runs, and a workspace in it."""

    installation: Installation
    engine: docker.DockerClient
    workspace_id: str = ""
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
        if not self.workspace_id or self._status() != "ready":
            self.made += 1
            self.workspace_id = self.asked(f"made-{self.made}", BLUEPRINT)
            ready = self.settled(f"/v1/workspaces/{self.workspace_id}", *ON_THE_WAY)
            assert ready["status"] == "ready", ready
            self.run_in_workspace("echo kept > ~/kept")

    def _is_well(self) -> bool:
        try:
            return all(self.readiness().values())
        except (AssertionError, OSError):
            return False

    def _status(self) -> str:
        return str(self.owned(f"/v1/workspaces/{self.workspace_id}")["status"])

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
        (found,) = self.engine.containers.list(all=True, filters={"label": labels})
        return found

    def workspace(self) -> Container:
        """The workspace's container."""
        labels = [f"svc.instance={self.instance}", f"svc.workspace={self.workspace_id}"]
        (found,) = self.engine.containers.list(all=True, filters={"label": labels})
        return found

    def run_in_workspace(self, script: str) -> str:
        """Have a one-shot run do something; return what it printed."""
        body = {
            "ownerUserId": OWNER,
            "workspaceId": self.workspace_id,
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

    def registry_status(self, password: str = "") -> int:
        """Ask the registry what it holds, as somebody on this machine may."""
        port = self.installation.settings["SVC_REGISTRY_PORT"]
        url = f"http://127.0.0.1:{port}/v2/_catalog"
        account = ("svc", password) if password else None
        return requests.get(url, auth=account, timeout=60).status_code

    def readiness(self) -> dict[str, bool]:
        """What `/readyz` says of each part."""
        return {check["name"]: check["ok"] for check in self.call("GET", "/readyz")["checks"]}
