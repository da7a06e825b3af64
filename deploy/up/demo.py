"""The main job, shown: a blueprint becomes an image, a container, a workspace that is ready."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any

from deploy.services.errors import SetupError
from deploy.up.layout import Layout
from deploy.up.progress import Progress, Step

_OWNER = os.environ.get("SVC_OWNER_USER_ID") or "usr_local"
_EXAMPLE = "examples/hello.json"
_SECONDS = 900.0
_FINAL = {"ready", "failed", "cancelled", "stopped"}

Answer = dict[str, Any]


def run(layout: Layout, url: str, environ: Mapping[str, str], progress: Progress) -> int:
    """Ask for a sandbox from the example, follow it until it is ready, prove that it runs."""
    example = layout.checkout / _EXAMPLE
    body = {
        "ownerUserId": _OWNER,
        "registryId": environ.get("REGISTRY_NAME") or "default",
        "repository": "workspaces/hello",
        "tag": f"demo-{int(time.time())}",
        "spec": json.loads(example.read_text()),
    }
    progress.note(f"The main job: POST {url}/v1/sandboxes with {_EXAMPLE}")
    accepted = _call(url, "POST", "/v1/sandboxes", body)
    sandbox_id, workspace_id = accepted["sandboxId"], accepted["workspaceId"]
    progress.note(f"  accepted: sandbox {sandbox_id} of workspace {workspace_id}\n")
    with progress.step("workspace") as step:
        sandbox = _follow(url, sandbox_id, workspace_id, step)
        if sandbox["status"] != "ready":
            step.now(f"{sandbox['status']}: {_short(sandbox)}")
            raise SetupError(_explain(url, workspace_id, sandbox))
        step.done("ready")
    workspace = _call(url, "GET", f"/v1/workspaces/{workspace_id}?ownerUserId={_OWNER}")
    progress.note(f"\nGET {url}/v1/workspaces/{workspace_id}\n{_indented(workspace)}")
    _prove(workspace_id, environ, progress)
    progress.note(
        f"\nThe same on a page: {url}/docs. The workspace keeps running. Stop everything: make down"
    )
    return 0


def _follow(url: str, sandbox_id: str, workspace_id: str, step: Step) -> Answer:
    """Poll until the sandbox is settled, saying each change of its state and of its reason."""
    deadline = time.monotonic() + _SECONDS
    last = ""
    while True:
        sandbox = _call(url, "GET", f"/v1/sandboxes/{sandbox_id}?ownerUserId={_OWNER}")
        workspace = _call(url, "GET", f"/v1/workspaces/{workspace_id}?ownerUserId={_OWNER}")
        reason = workspace.get("reason") or {}
        said = ": ".join(
            text for text in (str(sandbox["status"]), str(reason.get("message") or "")) if text
        )
        if said != last and sandbox["status"] not in _FINAL:
            step.now(said)
            last = said
        if sandbox["status"] in _FINAL:
            return sandbox
        if time.monotonic() > deadline:
            raise SetupError(f"Not settled after {_SECONDS:.0f} s. Last state: {said}")
        time.sleep(0.3)


def _prove(workspace_id: str, environ: Mapping[str, str], progress: Progress) -> None:
    """Ask the engine itself which container runs, and from which image digest."""
    docker = [environ["DOCKER_CLI"], "-H", environ["DOCKER_HOST"]]
    label = f"label=svc.workspace={workspace_id}"
    found = _output([*docker, "container", "ls", "-q", "--no-trunc", "--filter", label]).split()
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
    program = [*docker, "exec", found[0], "/usr/lib/svc/agent", "status"]
    agent = json.loads(_output(program))
    progress.note(
        "\nThe engine says:\n"
        f"  container  {container[:12]}  {state}\n"
        f"  image      {reference}\n"
        f"  agent      {agent.get('phase')} since {agent.get('since')}"
    )


def _output(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise SetupError(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")
    return done.stdout.strip()


def _call(url: str, method: str, path: str, body: object = None) -> Answer:
    """One request; a problem answer becomes a SetupError that repeats it."""
    headers = {"content-type": "application/json", "accept": "application/json"}
    if method == "POST":
        headers["idempotency-key"] = str(uuid.uuid4())
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}{path}", data=data, headers=headers, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            parsed = json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        raise SetupError(f"{method} {path} was answered {error.code}:\n{text}") from error
    except OSError as error:
        raise SetupError(f"{method} {path} was not answered: {error}") from error
    if not isinstance(parsed, dict):
        raise SetupError(f"{method} {path}: an object was expected, not {parsed!r}")
    return parsed


def _short(sandbox: Answer) -> str:
    return str(sandbox.get("errorCode") or (sandbox.get("reason") or {}).get("code") or "")


def _explain(url: str, workspace_id: str, sandbox: Answer) -> str:
    """Everything the API says about a sandbox that did not become ready."""
    attempts = _call(url, "GET", f"/v1/workspaces/{workspace_id}/attempts?ownerUserId={_OWNER}")
    return (
        f"The sandbox is {sandbox['status']}, not ready.\n"
        f"GET {url}/v1/sandboxes/{sandbox.get('sandboxId', '')}\n"
        f"{_indented(sandbox)}\nGET {url}/v1/workspaces/{workspace_id}/attempts\n"
        f"{_indented(attempts)}"
    )


def _indented(answer: Answer) -> str:
    text = json.dumps(answer, indent=2, ensure_ascii=False)
    return "\n".join(f"  {line}" for line in text.splitlines())
