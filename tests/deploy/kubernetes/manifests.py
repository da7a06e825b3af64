"""The manifests of ``deploy/kubernetes``, as ``kubectl apply -k`` would send them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.stack import cluster

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
OWN_IMAGE = "svc-controlplane"


def kubectl() -> str:
    """Return the client: the machine's, or the one that our own cluster comes with."""
    return shutil.which("kubectl") or str(cluster.STATE / "root" / "usr" / "bin" / "kubectl")


def composed(folder: Path) -> list[dict[str, Any]]:
    """Return what a folder amounts to; the client of our cluster has no Kustomize that does it."""
    overlay = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    found: list[dict[str, Any]] = []
    for each in overlay["resources"]:
        place = folder / each
        found += composed(place) if place.is_dir() else yaml.safe_load_all(place.read_text("utf-8"))
    for kind, key, member in (
        ("ConfigMap", "configMapGenerator", "data"),
        ("Secret", "secretGenerator", "stringData"),
    ):
        for each in overlay.get(key, ()):
            values = dict(pair for file in each["envs"] for pair in pairs(folder / file))
            metadata = {"name": each["name"]}
            found.append({"apiVersion": "v1", "kind": kind, "metadata": metadata, member: values})
    if "namespace" in overlay:
        for document in found:
            if document["kind"] != "Namespace":
                document["metadata"]["namespace"] = overlay["namespace"]
    return found


def pairs(file: Path) -> Iterator[tuple[str, str]]:
    """Yield what a file of settings sets."""
    for line in file.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name, value


def pods(documents: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of everything that makes Pods, and what they are made of."""
    for document in documents:
        template = document.get("spec", {}).get("template")
        if template is not None:
            yield document["metadata"]["name"], template["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all containers of a Pod."""
    return [*pod.get("initContainers", ()), *pod["containers"]]


def secrets_of(container: dict[str, Any]) -> set[str]:
    """Return the names of the secrets that a container is given."""
    return {
        each["valueFrom"]["secretKeyRef"]["key"]
        for each in container.get("env", ())
        if "valueFrom" in each
    }
