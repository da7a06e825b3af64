"""The main job, shown: a blueprint becomes a workspace, and a run in it becomes a record."""

from __future__ import annotations

import base64
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from deploy.services.errors import SetupError
from deploy.up.layout import Layout
from deploy.up.progress import Progress, Step

_EXAMPLE = "examples/hello.json"
_SECONDS = 900.0
_FINAL = {"ready", "failed", "cancelled", "stopped"}
_RUN_SECONDS = 120.0
_RUN_FINAL = {"completed", "failed", "cancelled"}
_SCRIPT = """\
echo "standard output, from $(whoami)"
echo "standard error" >&2
cat hello.txt
echo "changed by a run" >> hello.txt
"""

Answer = dict[str, Any]


def run(layout: Layout, url: str, environ: Mapping[str, str], progress: Progress) -> int:
    """Start a sandbox from the example, prove that it runs, and show the record of a run in it."""
    api = _Api(url, environ.get("SVC_OWNER_USER_ID") or "usr_local")
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
    progress.note(f"\nGET {url}{workspace_path}\n{_indented(workspace)}")
    _prove(accepted["workspaceId"], directory, environ, progress)
    _show_record(api, _execute(api, accepted["workspaceId"], progress), progress)
    progress.note(
        f"\nThe same on a page: {url}/docs. The workspace keeps running. Stop everything: make down"
    )
    return 0


def _follow(api: _Api, sandbox_path: str, step: Step) -> Answer:
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


def _prove(
    workspace_id: str, directory: str, environ: Mapping[str, str], progress: Progress
) -> None:
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


def _execute(api: _Api, workspace_id: str, progress: Progress) -> str:
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
    deadline = time.monotonic() + _RUN_SECONDS
    last = ""
    with progress.step("run") as step:
        while (run := api.get(f"/v1/runs/{run_id}"))["status"] not in _RUN_FINAL:
            if run["status"] != last:
                last = run["status"]
                step.now(last)
            if time.monotonic() > deadline:
                raise SetupError(f"The run has not ended after {_RUN_SECONDS:.0f} s.")
            time.sleep(0.1)
        if run["status"] != "completed":
            raise SetupError(f"The run is {run['status']}, not completed:\n{_indented(run)}")
        step.done("completed")
    return run_id


def _show_record(api: _Api, run_id: str, progress: Progress) -> None:
    """Print the record of a run: what happened, what it wrote, what is missing."""
    path = f"/v1/runs/{run_id}"
    items = api.get(f"{path}/timeline")["items"]
    lines = [f"  {item['sequence']:>3}  {item['kind']:<22} {item['summary']}" for item in items]
    progress.note(f"\nGET {api.url}{path}/timeline\n" + "\n".join(lines))
    for stream in ("stdout", "stderr"):
        told = api.get(f"{path}/scrollback", stream=stream)
        text = base64.b64decode(told["contentBase64"]).decode(errors="replace").rstrip()
        shown = "\n".join(f"  {line}" for line in text.splitlines())
        progress.note(f"\nGET {api.url}{path}/scrollback?stream={stream}\n{shown}")
    changes = api.get(f"{path}/changes")
    progress.note(f"\nGET {api.url}{path}/changes\n{_indented(changes)}")
    loss = {name: value for name, value in api.get(f"{path}/loss").items() if name != "coverage"}
    progress.note(f"\nGET {api.url}{path}/loss\n{_indented(loss)}")


def _output(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise SetupError(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")
    return done.stdout.strip()


def _explain(api: _Api, sandbox: Answer, workspace_path: str) -> str:
    """Everything the API says about a sandbox that did not become ready."""
    attempts = api.get(f"{workspace_path}/attempts")
    return (
        f"The sandbox is {sandbox['status']}, not ready:\n{_indented(sandbox)}\n"
        f"GET {api.url}{workspace_path}/attempts\n{_indented(attempts)}"
    )


def _indented(answer: Answer) -> str:
    text = json.dumps(answer, indent=2, ensure_ascii=False)
    return "\n".join(f"  {line}" for line in text.splitlines())


class _Api:
    """The API as one owner sees it; an answer that is a problem becomes a SetupError."""

    def __init__(self, url: str, owner: str) -> None:
        self.url = url
        self.owner = owner

    def get(self, path: str, **parameters: str) -> Answer:
        """Read one resource of the owner's."""
        query = urllib.parse.urlencode({"ownerUserId": self.owner, **parameters})
        return self.call("GET", f"{path}?{query}")

    def call(self, method: str, path: str, body: object = None) -> Answer:
        """Send one request. Raises SetupError with what was answered."""
        headers = {"content-type": "application/json", "accept": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - our own address
            f"{self.url}{path}", data=data, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                parsed = json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise SetupError(f"{method} {path} was answered {error.code}:\n{text}") from error
        except (OSError, ValueError) as error:
            raise SetupError(f"{method} {path} was not answered: {error}") from error
        if not isinstance(parsed, dict):
            raise SetupError(f"{method} {path}: an object was expected, not {parsed!r}")
        return parsed
