"""The main job with the client that openapi-python-client makes: ``main_job.py URL OWNER``.

Prints what came of each step, as JSON. The package ``generated_client`` is there only in the test.
"""

from __future__ import annotations

import json
import sys
import time
from io import BytesIO
from typing import TypeVar

from generated_client import Client
from generated_client.api.files import files_pack, files_unpack
from generated_client.api.runs import runs_timeline, workspaces_exec
from generated_client.api.workspaces import (
    workspaces_create,
    workspaces_delete,
    workspaces_get,
)
from generated_client.models import (
    Blueprint,
    BlueprintHarnessType0,
    BlueprintHarnessType0Id,
    CreateWorkspaceRequest,
    Exec,
    ExecRequest,
    Problem,
    StartedSandbox,
    Timeline,
    Workspace,
    WorkspaceStatus,
    WorkspaceSummary,
)
from generated_client.types import File

Answer = TypeVar("Answer")


def of(kind: type[Answer], answer: object) -> Answer:
    """Return the answer, which has to be of this type: not a problem, nor nothing."""
    assert isinstance(answer, kind), answer
    return answer


def main(url: str, owner: str) -> dict[str, object]:
    """Create a workspace, use it and delete it."""
    client = Client(base_url=url, raise_on_unexpected_status=True)
    request = CreateWorkspaceRequest(
        owner_user_id=owner,
        registry_id="default",
        repository="tests/generated",
        tag="python",
        spec=Blueprint(harness=BlueprintHarnessType0(id=BlueprintHarnessType0Id.SHELL)),
    )
    started = of(StartedSandbox, workspaces_create.sync(client=client, body=request))
    workspace_id = started.workspace_id
    while True:
        workspace = of(
            Workspace, workspaces_get.sync(workspace_id, client=client, owner_user_id=owner)
        )
        if workspace.status not in {WorkspaceStatus.QUEUED, WorkspaceStatus.RUNNING}:
            break
        time.sleep(0.2)
    status = workspace.status
    command = ExecRequest(command="mkdir a; echo $((6 * 7)) | tee a/b; exit 3")
    done = of(
        Exec, workspaces_exec.sync(workspace_id, body=command, client=client, owner_user_id=owner)
    )
    record = of(Timeline, runs_timeline.sync(done.run_id, client=client, owner_user_id=owner))
    tar = of(File, files_pack.sync(workspace_id, path="a", client=client, owner_user_id=owner))
    packed = tar.payload.read()
    files_unpack.sync_detailed(
        workspace_id, path="c", body=File(BytesIO(packed)), client=client, owner_user_id=owner
    )
    again = ExecRequest(command=["cat", "c/b"])
    copied = of(
        Exec, workspaces_exec.sync(workspace_id, body=again, client=client, owner_user_id=owner)
    )
    of(WorkspaceSummary, workspaces_delete.sync(workspace_id, client=client, owner_user_id=owner))
    while workspace.status != WorkspaceStatus.DELETED:
        time.sleep(0.2)
        workspace = of(
            Workspace, workspaces_get.sync(workspace_id, client=client, owner_user_id=owner)
        )
    absent = of(
        Problem, workspaces_get.sync(started.sandbox_id, client=client, owner_user_id=owner)
    )
    return {
        "status": status,
        "stdout": done.stdout,
        "exitCode": done.exit_code,
        "kinds": [item.kind for item in record.items],
        "packed": len(packed),
        "copied": copied.stdout,
        "remaining": workspace.status,
        "absent": absent.code,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
