"""Secrets that are bound to rules are used from inside a workspace, and are nowhere inside it."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import docker
import pytest
from docker.models.containers import Container
from pytest_django.fixtures import Settings

from accounts.connected import connect_account
from accounts.delivery import open_accounts
from accounts.providers import Provider
from runs.agent_archive import agent_archive, agent_digest
from tests.conftest import OWNER, Api
from tests.e2e.canaries import MARKER, SPELLINGS, secret
from tests.security.internet import internet
from tests.security.test_egress import Place
from tests.security.tls_hosts import PORT, TlsHosts, tls_hosts
from tests.stack.worker_process import eventually
from tests.workspaces.conftest import BASE_IMAGE, Launcher, published, tar_of
from tests.workspaces.conftest import docker_client as docker_client
from tests.workspaces.conftest import launcher as launcher
from tests.workspaces.conftest import make_launcher as make_launcher
from tests.workspaces.conftest import publish as publish
from tests.workspaces.conftest import workspace_image as workspace_image
from tests.workspaces.credentialed import in_run
from tests.workspaces.egress.test_changes import put
from tests.workspaces.egress.test_enforcement import sandbox
from workspaces.blueprint import Egress
from workspaces.credentials.documents import as_delivered, document_of
from workspaces.egress.agreed_policy import egress_of
from workspaces.egress.bound.authorities import authority_of
from workspaces.models import Attempt, EgressAuthority, WorkspaceEvent
from workspaces.runtimes.base import LaunchedRuntime
from workspaces.services import placeholders_of, references_of

pytestmark = [pytest.mark.docker, pytest.mark.django_db(transaction=True)]

KEY = base64.b64encode(bytes(range(32))).decode()
HOST = f"allowed.test:{PORT}"
URL = f"https://{HOST}"
WORKSPACES, ACCOUNTS = 4, 50
KILLS = 3
NPM = "10.8.2"
CLIENTS = f"""\
FROM {BASE_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends python3 sudo ca-certificates \\
    git curl gh nodejs python3-pip python3-requests
RUN useradd --create-home --uid 1000 --shell /bin/bash workspace
COPY npm.tgz /tmp/
RUN mkdir /usr/local/lib/npm \\
 && tar -xzf /tmp/npm.tgz -C /usr/local/lib/npm --strip-components 1 \\
 && ln -s /usr/local/lib/npm/bin/npm-cli.js /usr/local/bin/npm
COPY svc-agent /usr/lib/svc/agent
RUN ["/usr/lib/svc/agent", "compile"]
ENV NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
ENV REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
ENTRYPOINT ["/usr/lib/svc/agent", "boot"]
"""
"""As a built image is, with the clients that people use."""
PLACES = ("/run", "/home", "/tmp", "/etc", "/var", "/workspace", "/root", "/dev/shm")
"""What differs from the image."""
ONE_AUTHORITY = "/usr/share/ca-certificates/mozilla/ISRG_Root_X1.crt"
HEADER = "Authorization: Bearer $GH_TOKEN"
WAITING = {
    "kind": "command",
    "run": "sleep infinity & wait",
    "shell": "bash",
    "workingDirectory": None,
}
"""A program of the user, whose environment and memory are searched."""
PROGRAMS = {
    "curl": f'curl -sS -H "{HEADER}" {URL}/a',
    "curl with a body": f'curl -sS -H "{HEADER}" -d "some=thing" {URL}/a',
    "git": "git -c credential.helper='!f() { echo username=x; echo password=$GH_TOKEN; }; f'"
    f" ls-remote {URL}/repo.git | grep refs/heads/main && echo welcome",
    "pip": f"pip download --no-deps --disable-pip-version-check -q -d /tmp/wheels"
    f" --index-url https://x:$GH_TOKEN@{HOST}/simple canarypkg"
    " && ls /tmp/wheels | grep canarypkg-1.0 && echo welcome",
    # GitHub's own, which is written in Go.
    "gh": f"GH_HOST={HOST} GH_ENTERPRISE_TOKEN=$GH_TOKEN gh api a",
    "npm": f"npm view canarypkg version --no-update-notifier --registry={URL}/npm/"
    f" --//{HOST}/npm/:_authToken=$GH_TOKEN | grep 1.0.0 && echo welcome",
    "Node": f"node -e \"fetch('{URL}/a', {{headers: {{authorization: 'Bearer ' +"
    ' process.env.GH_TOKEN}}).then(a => a.text()).then(console.log)"',
    "requests": 'python3 -c "import os, requests; print(requests.get('
    f"'{URL}/a', headers={{'Authorization': 'Bearer ' + os.environ['GH_TOKEN']}}).text)\"",
    "urllib": 'python3 -c "import os, urllib.request as r; print(r.urlopen(r.Request('
    f"'{URL}/a', headers={{'Authorization': 'Bearer ' + os.environ['GH_TOKEN']}})).read())\"",
}
PROGRAMS["urllib, with no variable that names a list"] = (
    f"env -u SSL_CERT_FILE -u REQUESTS_CA_BUNDLE {PROGRAMS['urllib']}"
)


@pytest.fixture(scope="module")
def clients_image(
    docker_client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The digest reference of an image with the clients."""
    folder = tmp_path_factory.mktemp("npm")
    subprocess.run(["npm", "pack", f"npm@{NPM}", "--silent"], cwd=folder, check=True)
    npm = (folder / f"npm-{NPM}.tgz").read_bytes()
    files = {"Dockerfile": CLIENTS.encode(), "svc_agent": agent_archive(), "npm.tgz": npm}
    return published(docker_client, tar_of(**files), tag=f"clients-{agent_digest()[:24]}")


class Bound:
    """Workspaces whose accounts are all bound, and the hosts that they are bound to."""

    def __init__(self, place: Place, hosts: TlsHosts, secrets: dict[str, str], image: str) -> None:
        self.place = place
        self.hosts = hosts
        self.secrets = secrets
        self.image = image

    def launch(self, api: Api, number: int) -> tuple[LaunchedRuntime, Attempt]:
        """Start a workspace with the accounts of this number, as a worker does."""
        names = [name for name in self.secrets if name.startswith(f"x-key-{number}-")]
        rules: list[dict[str, Any]] = [
            {"hosts": ["allowed.test"], "ports": [PORT], "credential": "github"},
            {"hosts": ["other.test"], "ports": [80]},
        ]
        rules += [
            {
                "hosts": ["allowed.test"],
                "ports": [PORT],
                "credential": variable(name),
                "header": name,
            }
            for name in names
        ]
        body = sandbox({"rules": rules})
        body["credentials"] = {"github": "default", "generic": list(map(variable, names))}
        body["repository"] = f"team/app{number}"
        started = api.post("/v1/sandboxes", body, expect=202).body
        attempt = Attempt.objects.select_related("workspace").get(pk=started["attemptId"])

        def document() -> bytes:
            references = references_of(attempt)
            opened = open_accounts(references, owner_user_id=OWNER)
            return document_of(as_delivered(attempt, opened))

        launcher = self.place.launcher
        request = launcher.request(
            image=self.image,
            outbound=True,
            egress=egress_of(
                attempt, Egress.model_validate({"rules": rules}), references_of(attempt)
            ),
            authority=authority_of(attempt.workspace_id),
            boot={"credentials": True, "foreground": WAITING},
            credentials=document,
            memory_mb=1024,
        )
        return launcher.launch(request), attempt


def variable(header: str) -> str:
    return header.upper().replace("-", "_")


def searched(container: Container, *wanted: bytes, files: Sequence[str] = PLACES) -> set[str]:
    """Return where any of these is, in processes and below folders of a container.

    Read from the machine, with every capability: whatever root could find inside is found, and
    nothing inside can hide from it.
    """
    pattern = re.compile(b"|".join(map(re.escape, wanted)))
    found = set()
    processes = [int(line[1]) for line in container.top()["Processes"]]
    assert len(processes) >= 3  # the agent, the shell and what it waits for
    for process in processes:
        of_process = Path(f"/proc/{process}")
        # What has ended since it was listed, or forgotten what it had, has nothing.
        with suppress(FileNotFoundError, ProcessLookupError):
            for name in ("environ", "cmdline"):
                if pattern.search((of_process / name).read_bytes()):
                    found.add(name)
            if any(pattern.search(part) for part in memory_of(of_process)):
                found.add("memory")
    root = f"/proc/{processes[0]}/root"
    for place in files:
        for top, _, names in os.walk(root + place):
            for name in names:
                path = Path(top, name)
                with suppress(FileNotFoundError):
                    regular = path.is_file() and not path.is_symlink()
                    if regular and pattern.search(path.read_bytes()):
                        found.add(str(path).removeprefix(root))
    return found


def memory_of(process: Path) -> Iterator[bytes]:
    """Read all that a process can read of its memory."""
    with (process / "mem").open("rb", 0) as memory:
        for line in (process / "maps").read_text().splitlines():
            place, modes = line.split()[:2]
            start, end = (int(each, 16) for each in place.split("-"))
            if "r" in modes and "[v" not in line:
                memory.seek(start)
                try:
                    part = memory.read(end - start)
                except OSError as error:
                    if error.errno != errno.EIO:  # it has given this part back meanwhile
                        raise
                    continue
                yield part


@pytest.fixture
def bound(
    launcher: Launcher, tmp_path: Path, settings: Settings, clients_image: str
) -> Iterator[Bound]:
    settings.SVC_INSTANCE_ID = launcher.instance_id
    settings.SVC_CREDENTIALS_KEY = KEY
    secrets = {"authorization": secret("github", 0)}
    for number in range(WORKSPACES * ACCOUNTS):
        workspace, account = divmod(number, ACCOUNTS)
        secrets[f"x-key-{workspace}-{account}"] = f"{MARKER}{number:04}xx"
    for name, value in secrets.items():
        of_git = name == "authorization"
        connect_account(
            owner_user_id=OWNER,
            provider=Provider.GITHUB if of_git else Provider.GENERIC,
            name=None if of_git else variable(name),
            secret=value,
        )
    with ExitStack() as stack:
        world = stack.enter_context(internet(tmp_path))
        hosts = stack.enter_context(tls_hosts(tmp_path, secrets))
        place = Place(launcher, world, tmp_path)
        place.environment = {
            "SVC_CREDENTIALS_KEY": KEY,
            "SSL_CERT_FILE": str(hosts.authority),
        }
        stack.enter_context(place.ended)
        place.start_proxy()
        place.guard.ensure()
        yield Bound(place, hosts, secrets, clients_image)


def test_two_hundred_bound_secrets_are_used_by_many_clients_and_found_nowhere_inside(
    bound: Bound, api: Api
) -> None:
    launched = [bound.launch(api, number) for number in range(WORKSPACES)]
    runtime, attempt = launched[0]
    run_id = UUID(runtime.reference.removeprefix("svc-"))
    said = {
        name: in_run(bound.place.launcher, run_id, script, number)
        for number, (name, script) in enumerate(PROGRAMS.items(), 1)
    }
    failed = {name: output for name, output in said.items() if "welcome" not in output}
    assert not failed, failed

    for number, (one, of_one) in enumerate(launched):
        container = bound.place.launcher.container(one)
        send = " ".join(
            f'-H "{name}: ${variable(name)}"' for name in bound.secrets if f"-{number}-" in name
        )
        script = f'curl -sS -H "{HEADER}" {send} {URL}/all'
        answer = in_run(bound.place.launcher, UUID(one.reference.removeprefix("svc-")), script, 100)
        assert "welcome" in answer, answer
        (key,) = EgressAuthority.objects.filter(pk=of_one.workspace_id)
        assert b"PRIVATE" not in bytes(key.sealed_key)
        everything = ("/bin", "/lib", "/opt", "/sbin", "/srv", "/usr") if number == 0 else ()
        assert searched(container, *SPELLINGS, files=[*PLACES, *everything]) == set()
        assert searched(container, b"PRIVATE KEY-----\nM", files=PLACES) == set()
        given = [each.encode() for each in placeholders_of(of_one).values()]
        assert len(given) == ACCOUNTS + 1
        # What is there instead is found, so a secret would be.
        places = searched(container, given[-1])
        assert {"environ", "memory"} < places, places

    sent = json.dumps(bound.hosts.requests)
    assert all(value in sent for value in bound.secrets.values())
    assert "svcplaceholder" not in sent
    assert {each.placeholder for each in attempt.credentials.all()}.isdisjoint({""})


def test_placeholders_elsewhere_are_findings_and_clients_that_pin_are_told_of(
    bound: Bound, api: Api
) -> None:
    runtime, attempt = bound.launch(api, 0)
    run_id = UUID(runtime.reference.removeprefix("svc-"))
    answer = in_run(
        bound.place.launcher,
        run_id,
        f'curl -s -H "{HEADER}" http://other.test/a;'
        f' curl -s -H "X-Other: $GH_TOKEN" {URL}/open;'
        f" curl -sS --capath /tmp --cacert {ONE_AUTHORITY} {URL}/open 2>&1",
    )
    assert answer.count('"code": "egress-refused"') == 2, answer
    assert "certificate" in answer
    assert bound.hosts.requests == []
    assert "198.51.100.3" not in {to for _, to, _ in bound.place.world.packets}
    events = WorkspaceEvent.objects.filter(attempt=attempt)

    def told(**data: Any) -> list[str]:
        return sorted(each.type for each in events.filter(data__contains=data))

    eventually(lambda: told(rule="placeholder") == ["egress.finding"] * 2, what="both are findings")
    eventually(
        lambda: told(rule="certificate-not-accepted"), what="an event tells of the client that pins"
    )


def test_a_policy_is_replaced_under_load_and_the_proxy_is_killed_at_any_moment(
    bound: Bound, api: Api
) -> None:
    runtime, attempt = bound.launch(api, 0)
    launcher, run_id = bound.place.launcher, UUID(runtime.reference.removeprefix("svc-"))
    load = (
        "import os, time, requests\n"
        "done, wrong = 0, 0\n"
        "head = {'Authorization': 'Bearer ' + os.environ['GH_TOKEN']}\n"
        "while not (done and os.path.exists('STOP')):\n"
        "    try:\n"
        f"        told = requests.get('{URL}/load', headers=head, timeout=SECONDS).text\n"
        "        done += told == 'welcome'\n"
        "        wrong += told != 'welcome'\n"
        "    except requests.RequestException as error:\n"
        "        LAST = error\n"
        "        FAILED\n"
        "print('done', done, 'wrong', wrong)\n"
    )

    def loaded(failed: str, number: int, *, seconds: int) -> threading.Thread:
        program = load.replace("FAILED", failed).replace("SECONDS", str(seconds))
        program = program.replace("STOP", f"/tmp/stop-{number}").replace("'", '"')
        script = f"for i in 1 2 3 4; do python3 -c '{program}' & done; wait"
        thread = threading.Thread(
            target=lambda: outputs.update({number: in_run(launcher, run_id, script, number)})
        )
        thread.start()
        return thread

    def stop(number: int) -> None:
        launcher.inside(runtime, "touch", f"/tmp/stop-{number}")

    outputs: dict[int, str] = {}
    before = api.get(f"/v1/workspaces/{attempt.workspace_id}/egress").body["policy"]
    client = loaded("wrong += 1000", 1, seconds=300)
    for number in range(20):
        rules = [*before["rules"], {"hosts": [f"n{number}.test"], "ports": [443]}]
        put(api, attempt, {**before, "rules": rules})
    stop(1)
    client.join()
    counts = [line.split() for line in outputs[1].splitlines() if line.startswith("done")]
    assert len(counts) == 4, outputs[1]
    assert all(int(words[1]) > 0 and words[3] == "0" for words in counts), outputs[1]

    client = loaded("time.sleep(0.1)", 2, seconds=5)
    for _ in range(KILLS):
        bound.place.proxy.process.kill()
        bound.place.proxy.process.wait()
        bound.place.proxy.log.unlink()
        bound.place.start_proxy()
    stop(2)
    client.join()
    counts = [line.split() for line in outputs[2].splitlines() if line.startswith("done")]
    assert len(counts) == 4, outputs[2]
    assert all(int(words[1]) > 0 and words[3] == "0" for words in counts), outputs[2]
    assert "svcplaceholder" not in json.dumps(bound.hosts.requests)
    assert {each["path"] for each in bound.hosts.requests} == {"/load"}

    put(api, attempt, {"rules": [{"hosts": ["other.test"], "ports": [80]}]})
    curl = f'curl -sS -m 300 -H "{HEADER}" {URL}'
    seen = f"for i in $(seq 50); do {curl}/load | grep -q welcome || break; sleep 0.2; done"
    refused = f"{seen} 2>&1; {curl}/late 2>&1"
    assert "welcome" not in in_run(launcher, run_id, refused, 3)
    assert {each["path"] for each in bound.hosts.requests} == {"/load"}
