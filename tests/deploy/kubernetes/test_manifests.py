"""The manifests hold what they promise, without a cluster: rights, secrets, probes, settings."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from deploy.health import CHECKS
from tests.deploy.kubernetes.manifests import FOLDER, OWN_IMAGE, containers, pods, secrets_of
from workspaces.runtimes.kubernetes.preflight import RIGHTS


def documents(*folders: str) -> list[dict[str, Any]]:
    """What the files of some folders hold, as they are written."""
    found: list[dict[str, Any]] = []
    for folder in folders:
        for path in sorted((FOLDER / folder).glob("*.yaml")):
            if path.name != "kustomization.yaml":
                found.extend(yaml.safe_load_all(path.read_text("utf-8")))
    return found


OURS = documents("base")
ALL = documents("base", "postgres", "rabbitmq", "access", "example")
PODS = dict(pods(ALL))
PROCESSES = ("api", "buildworker", "runworker", "sshgateway", "previewgateway")
FOR_ITSELF = {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD"} | {
    "RABBITMQ_NODENAME",
    "RABBITMQ_DEFAULT_USER",
    "RABBITMQ_DEFAULT_PASS",
    "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
}
"""What the images of PostgreSQL and RabbitMQ read."""


def role(name: str) -> dict[str, Any]:
    """A Role of the namespace of workspaces."""
    (found,) = (each for each in ALL if each["kind"] == "Role" and each["metadata"]["name"] == name)
    return found


def rights(name: str) -> set[tuple[str, str]]:
    """The verbs of a Role, each with its resource."""
    return {
        (verb, resource)
        for rule in role(name)["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_every_folder_lists_exactly_its_files() -> None:
    for folder in ("base", "access", "postgres", "rabbitmq", "example"):
        place = FOLDER / folder
        listed = yaml.safe_load((place / "kustomization.yaml").read_text("utf-8"))["resources"]
        files = {path.name for path in place.glob("*.yaml")} - {"kustomization.yaml"}
        assert {each for each in listed if each.endswith(".yaml")} == files
        assert all((place / each).exists() for each in listed)


def test_every_process_is_there_once_and_runs_a_command_that_exists() -> None:
    assert {name for name, _ in pods(OURS)} == {*PROCESSES, "migrate"}
    commands = {path.stem for path in FOLDER.parents[1].glob("*/management/commands/*.py")}
    for _, pod in pods(OURS):
        command = pod["containers"][0].get("command", [])
        assert "manage.py" not in command or command[4] in commands | {"migrate"}


def test_nothing_of_ours_has_more_rights_on_its_node_than_it_needs() -> None:
    for name, pod in pods(OURS):
        assert pod["securityContext"]["runAsNonRoot"], name
        assert "hostNetwork" not in pod
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in container["resources"]["limits"]
    for pod in PODS.values():
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any("hostPath" in volume for volume in pod.get("volumes", ()))


def test_the_build_worker_has_the_rights_that_launches_need_and_the_others_fewer() -> None:
    needed = {(verb, f"{what}/{sub}" if sub else what) for verb, what, sub in RIGHTS}
    assert rights("svc-launcher") == needed
    assert rights("svc-runner") < needed
    assert not {verb for verb, what in rights("svc-runner") if what == "pods"} - {"get", "list"}
    assert not [each for each in ALL if each["kind"].startswith("ClusterRole")]


def test_each_role_is_bound_to_the_account_of_its_name_and_to_no_other() -> None:
    accounts = {e["metadata"]["name"] for e in OURS if e["kind"] == "ServiceAccount"}
    bound = [each for each in ALL if each["kind"] == "RoleBinding"]
    for binding in bound:
        name = binding["roleRef"]["name"]
        assert [each["name"] for each in binding["subjects"]] == [name]
        assert name in accounts
        assert role(name)["metadata"]["namespace"] == binding["metadata"]["namespace"]
    assert len(bound) == 2
    assert {name: pod["serviceAccountName"] for name, pod in pods(OURS)} == {
        "api": "svc-runner",
        "buildworker": "svc-launcher",
        "runworker": "svc-runner",
        "sshgateway": "svc-runner",
        "previewgateway": "svc-runner",
        "migrate": "svc-migrate",
    }


def test_only_who_talks_to_the_cluster_gets_a_token() -> None:
    with_token = {name for name, pod in PODS.items() if pod["automountServiceAccountToken"]}
    assert with_token == set(PROCESSES)


def test_gateways_are_given_neither_the_database_nor_keys() -> None:
    for name in ("sshgateway", "previewgateway"):
        assert [secrets_of(each) for each in containers(PODS[name])] == [
            {"WORKSPACE_SSH_GATEWAY_TOKEN"}
        ]
    (runs,) = PODS["runworker"]["containers"]
    assert secrets_of(runs) == {"DATABASE_URL", "RABBITMQ_URL", "SVC_RECORD_SIGNING_KEY"}


@pytest.mark.parametrize("name", PROCESSES)
def test_what_restarts_a_process_does_not_ask_the_database(name: str) -> None:
    (container,) = PODS[name]["containers"]
    checks = {}
    for kind in ("startup", "liveness", "readiness"):
        command = container[f"{kind}Probe"]["exec"]["command"]
        assert command[:3] == ["python", "-m", "deploy.health"]
        checks[kind] = command[3]
        assert checks[kind] in CHECKS
    without_database = {"alive", "api", "sshgateway", "previewgateway"}
    assert {checks["startup"], checks["liveness"]} <= without_database
    if not name.endswith("gateway"):
        assert checks["readiness"] not in without_database


def test_a_worker_that_is_asked_whether_it_is_alive_has_a_file_for_it() -> None:
    for name in ("buildworker", "runworker"):
        (container,) = PODS[name]["containers"]
        values = {each["name"]: each.get("value") for each in container["env"]}
        assert values["WORKER_ALIVE_FILE"] == "/tmp/alive"
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


def test_whoever_uses_the_database_waits_for_the_migrations() -> None:
    for name, pod in pods(OURS):
        uses = "DATABASE_URL" in secrets_of(pod["containers"][0])
        waits = [each["name"] for each in pod.get("initContainers", ())]
        wanted = "database" if name == "migrate" else "migrated"
        assert waits == ([wanted] if uses else [])
        # Asking costs little while there is no database, which all of them do at once.
        for each in pod.get("initContainers", ()):
            assert each["command"][2].startswith("until python -m deploy.health database")


def test_every_image_is_named_by_the_overlay() -> None:
    overlay = yaml.safe_load((FOLDER / "example" / "kustomization.yaml").read_text("utf-8"))
    used = {each["image"] for pod in PODS.values() for each in containers(pod)}
    assert used == {each["name"] for each in overlay["images"]}
    assert {each["image"] for _, pod in pods(OURS) for each in containers(pod)} == {OWN_IMAGE}


def test_every_setting_that_is_set_exists() -> None:
    example = (FOLDER.parent / ".env.example").read_text("utf-8")
    known = set(re.findall(r"^#([A-Z][A-Z0-9_]+)=", example, flags=re.MULTILINE))
    named = {
        each["name"]
        for pod in PODS.values()
        for container in containers(pod)
        for each in container.get("env", ())
    }
    for file in ("settings.env", "secrets.env"):
        lines = (FOLDER / "example" / file).read_text("utf-8").splitlines()
        named |= {line.partition("=")[0] for line in lines if line and line[0] != "#"}
    assert named - known - FOR_ITSELF == set()


def test_every_secret_that_is_needed_is_in_the_example() -> None:
    lines = (FOLDER / "example" / "secrets.env").read_text("utf-8").splitlines()
    given = {line.partition("=")[0] for line in lines if line and line[0] != "#"}
    needed = {
        each["valueFrom"]["secretKeyRef"]["key"]
        for pod in PODS.values()
        for container in containers(pod)
        for each in container.get("env", ())
        if "valueFrom" in each and not each["valueFrom"]["secretKeyRef"].get("optional")
    }
    assert given == needed


def test_the_api_answers_its_probes_and_the_gateways_under_the_names_they_use() -> None:
    lines = (FOLDER / "example" / "settings.env").read_text("utf-8").splitlines()
    hosts = dict(line.split("=", 1) for line in lines)["SVC_ALLOWED_HOSTS"].split(",")
    assert hosts == ["127.0.0.1", "api"]
    for name in ("sshgateway", "previewgateway"):
        (container,) = PODS[name]["containers"]
        values = {each["name"]: each.get("value") for each in container["env"]}
        assert values["SSH_GATEWAY_API_BASE_URL"] == "http://api:4000"


def test_the_examples_engine_is_reached_without_tls_by_nobody_else() -> None:
    lines = (FOLDER / "example" / "settings.env").read_text("utf-8").splitlines()
    engine = urlsplit(dict(line.split("=", 1) for line in lines)["DOCKER_HOST"])
    # Port 2376 is the one of engines that speak TLS, which DOCKER_HOST does not.
    assert (engine.scheme, engine.hostname, engine.port) == ("tcp", "127.0.0.1", 2375)
