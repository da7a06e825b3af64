"""A workspace that really runs, with the rows of a ready one, as the API reaches its files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from runs.agent.record.frames import KIND_NAMES, decode, frames
from tests.conftest import OWNER, Answer, Api
from tests.runs.ready import ready_attempt
from tests.support.waiting import LONG_WAIT
from workspaces.models import RuntimeInstance
from workspaces.runtimes.base import LaunchedRuntime

if TYPE_CHECKING:
    from tests.workspaces.conftest import Launcher

HOME = "/workspace/repo"
"""Where relative paths begin."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Box:
    """The container, the workspace's rows, and a client of the API."""

    api: Api
    launcher: Launcher
    runtime: LaunchedRuntime
    run_id: Any
    workspace_id: Any
    home: str = HOME

    @classmethod
    def of(cls, api: Api, launcher: Launcher, run_id: Any, runtime: LaunchedRuntime) -> Box:
        """Write the rows of a workspace whose container this is."""
        attempt = ready_attempt()
        RuntimeInstance.objects.filter(attempt=attempt).update(run_id=run_id)
        return cls(api, launcher, runtime, run_id, attempt.workspace_id)

    def path(self, action: str = "files", **query: Any) -> str:
        given = urlencode({"ownerUserId": OWNER, **query})
        return f"/v1/workspaces/{self.workspace_id}/{action}?{given}"

    def put(
        self, path: str, content: bytes, *, expect: int = 201, headers: Any = None, **query: Any
    ) -> Answer:
        return self.api.request(
            "PUT",
            self.path(path=path, **query),
            raw=content,
            content_type="application/octet-stream",
            headers=headers,
            expect=expect,
        )

    def get(self, path: str, *, expect: int = 200, headers: Any = None, **query: Any) -> Answer:
        place = self.path(**({"path": path} if path else {}), **query)
        return self.api.request("GET", place, headers=headers, expect=expect)

    def delete(self, path: str, *, expect: int = 204, headers: Any = None, **query: Any) -> Answer:
        place = self.path(path=path, **query)
        return self.api.request("DELETE", place, headers=headers, expect=expect)

    def stat(self, path: str, *, expect: int = 200, **query: Any) -> Any:
        return self.api.get(self.path("files/stat", path=path, **query), expect=expect).body

    def list_folder(self, path: str, *, expect: int = 200, **query: Any) -> Any:
        return self.api.get(self.path("files/list", path=path, **query), expect=expect).body

    def post(self, action: str, *, expect: int = 204, **members: Any) -> Answer:
        place = f"/v1/workspaces/{self.workspace_id}/files/{action}"
        return self.api.post(place, {"ownerUserId": OWNER, **members}, expect=expect)

    def pack(self, path: str, *, expect: int = 200) -> Answer:
        return self.api.get(self.path("archive", path=path), expect=expect)

    def unpack(self, path: str, content: bytes, *, expect: int = 200) -> Answer:
        return self.api.request(
            "PUT",
            self.path("archive", path=path),
            raw=content,
            content_type="application/x-tar",
            expect=expect,
        )

    def run(self, script: str, *, user: str = "workspace") -> str:
        """Run a shell script in the working directory; return what it printed."""
        code, printed = self.launcher.inside(
            self.runtime, "bash", "-c", f"cd {self.home} && {script}", user=user
        )
        assert code == 0, printed
        return printed

    def left_behind(self, folder: str = "/") -> str:
        """What uploads have left in a folder and below it."""
        return self.run(
            f"find {folder} -xdev -name '.svc-upload-*' 2>/dev/null || true", user="root"
        )

    def accesses(self) -> list[dict[str, Any]]:
        """What the record of the workspace tells of its files."""
        answer = self.launcher.adapter.call_agent(
            self.run_id, ("tail", str(self.run_id)), timeout=LONG_WAIT
        )
        _, _, content = answer.stdout.partition(b"\n")
        events = [decode(frame) for frame in frames(content) if frame]
        return [
            json.loads(event.meta)
            for event in events
            if KIND_NAMES.get(event.kind) == "fileAccessed"
        ]
