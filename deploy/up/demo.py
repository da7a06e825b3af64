"""The main job, shown: a blueprint becomes a workspace, and runs and sessions in it records."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping

from deploy.services.errors import SetupError
from deploy.up import demo_session
from deploy.up.api import Answer, Api, indented
from deploy.up.demo_record import show_record, wait_completed
from deploy.up.layout import Layout
from deploy.up.progress import Progress, Step

_EXAMPLE = "examples/hello.json"
_SECONDS = 900.0
_FINAL = {"ready", "failed", "cancelled", "stopped"}
_SCRIPT = """\
echo "standard output, from $(whoami)"
echo "standard error" >&2
cat hello.txt
echo "changed by a run" >> hello.txt
"""


def run(layout: Layout, url: str, environ: Mapping[str, str], progress: Progress) -> int:
    """Start a sandbox from the example, prove that it runs, and show the records of a run in it
    and of a session over SSH."""
    api = Api(url, environ.get("SVC_OWNER_USER_ID") or "usr_local")
    body = {
        "ownerUserId": api.owner,
        "registryId": environ.get("REGISTRY_NAME") or "default",
        "repository": "workspaces/hello",
        "tag": f"demo-{int(time.time())}",
        "spec": json.loads((layout.checkout / _EXAMPLE).read_text()),
    }
    progress.note(f"The main job: POST {url}/v1/sandboxes with {_EXAMPLE}")
    accepted = api.call("POST", "/v1/sandboxes", body)
    workspace_path = f"/v1/workspaces/{accepted['workspaceId']}"
    progress.note(f"  accepted: sandbox {accepted['sandboxId']}, {workspace_path}\n")
    with progress.step("workspace") as step:
        sandbox = _follow(api, f"/v1/sandboxes/{accepted['sandboxId']}", step)
        if sandbox["status"] != "ready":
            step.now(str(sandbox["status"]))
            raise SetupError(_explain(api, sandbox, workspace_path))
        step.done("ready")
    workspace = api.get(workspace_path)
    directory = workspace["spec"]["runtime"]["workingDirectory"]
    workspace["spec"] = f"{_EXAMPLE}, every default filled in"
    progress.note(f"\nGET {url}{workspace_path}\n{indented(workspace)}")
    _prove(accepted["runId"], directory, environ, progress)
    executed = _execute(api, accepted["workspaceId"], progress)
    show_record(api, executed, ("stdout", "stderr"), progress)
    demo_session.show(layout, api, accepted["workspaceId"], environ, progress)
    progress.note(
        f"\nThe same on a page: {url}/docs. The workspace keeps running. Stop everything: make down"
    )
    return 0


def _follow(api: Api, sandbox_path: str, step: Step) -> Answer:
    """Poll until the sandbox is settled, saying each change of its state and of its reason."""
    deadline = time.monotonic() + _SECONDS
    last: tuple[str, str] | None = None
    while True:
        sandbox = api.get(sandbox_path)
        if sandbox["status"] in _FINAL:
            return sandbox
        reason = sandbox.get("reason") or {}
        said = ": ".join(filter(None, (sandbox["status"], reason.get("message"))))
        # The message also carries times that change with every look.
        if (state := (sandbox["status"], reason.get("code", ""))) != last:
            step.now(said)
            last = state
        if time.monotonic() > deadline:
            raise SetupError(f"Not settled after {_SECONDS:.0f} s. Last state: {said}")
        time.sleep(0.3)


def _prove(run_id: str, directory: str, environ: Mapping[str, str], progress: Progress) -> None:
    """Ask the engine itself which container runs, and from which image digest."""
    docker = [environ["DOCKER_CLI"], "-H", environ["DOCKER_HOST"]]
    # By its name: the labels of one that waited in the warm pool are not the workspace's.
    name = f"name=^/?svc-{run_id}$"
    found = _output([*docker, "container", "ls", "-q", "--no-trunc", "--filter", name]).split()
    if len(found) != 1:
        raise SetupError(f"Expected one running container of the workspace, found {len(found)}.")
    facts = "{{.Id}}\n{{.Config.Image}}\n{{.Image}}\n{{.State.Status}} since {{.State.StartedAt}}"
    container, reference, image, state = _output(
        [*docker, "container", "inspect", "--format", facts, found[0]]
    ).splitlines()
    digests = json.loads(
        _output([*docker, "image", "inspect", "--format", "{{json .RepoDigests}}", image])
    )
    if "@sha256:" not in reference or reference not in digests:
        raise SetupError(f"The container runs {reference}, which is not a published digest.")
    inside = [*docker, "exec", found[0]]
    agent = json.loads(_output([*inside, "/usr/lib/svc/agent", "status"]))
    greeting = _output([*inside, "cat", f"{directory}/hello.txt"])
    progress.note(
        "\nThe engine says:\n"
        f"  container  {container[:12]}  {state}\n"
        f"  image      {reference}\n"
        f"  agent      {agent.get('phase')} since {agent.get('since')}\n"
        f"  hello.txt  {greeting}"
    )


def _execute(api: Api, workspace_id: str, progress: Progress) -> str:
    """Have a short script run in the workspace; return the run's id once it has completed."""
    body = {
        "ownerUserId": api.owner,
        "workspaceId": workspace_id,
        "harnessId": "shell",
        "mode": "one-shot",
        "command": {"executable": "sh", "args": ["-c", _SCRIPT]},
    }
    progress.note(f"\nA run in it: POST {api.url}/v1/runs")
    run_id = str(api.call("POST", "/v1/runs", body)["runId"])
    wait_completed(api, run_id, "run", progress)
    return run_id


def _output(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise SetupError(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")
    return done.stdout.strip()


def _explain(api: Api, sandbox: Answer, workspace_path: str) -> str:
    """Everything the API says about a sandbox that did not become ready."""
    attempts = api.get(f"{workspace_path}/attempts")
    return (
        f"The sandbox is {sandbox['status']}, not ready:\n{indented(sandbox)}\n"
        f"GET {api.url}{workspace_path}/attempts\n{indented(attempts)}"
    )
