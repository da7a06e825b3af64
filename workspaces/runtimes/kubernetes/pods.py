"""What a workspace's Pod is made of, and how it is recognised later.

Two containers of the same image share the agent's folder. ``workspace`` begins with ``start.sh``,
which waits until it has been given the agent's configuration and then becomes the agent;
``keeper`` does nothing: while it is there the records of an ended workspace can be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from workspaces.runtimes import boot, credentials
from workspaces.runtimes.base import LaunchRequest, Volume
from workspaces.runtimes.kubernetes.cluster import (
    INSTANCE_LABEL,
    RUN_LABEL,
    WORKSPACE_LABEL,
    Document,
)
from workspaces.runtimes.kubernetes.pod_placement import ANYWHERE, PodPlacement

WORKSPACE = "workspace"
KEEPER = "keeper"
STATE_DIRECTORY = "/var/lib/svc"
RELAY = f"{STATE_DIRECTORY}/relay.py"
GIVEN = f"{STATE_DIRECTORY}/given"
ATTEMPT_COUNT = "svc.attempt-count"
TOKEN = "svc.token"  # noqa: S105 - the name of an annotation
DISCARDED = "svc.discarded-by"
WORKING_DIRECTORY = "svc.working-directory"
GRACE_SECONDS = 30
"""For what is deleted by others: the agent ends its records within that."""
KEEPER_MEMORY = "32Mi"
CPU_SHARE = 10
"""A node takes workspaces with this many times its processors as limits."""

AGENT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
SUDO_CAPABILITIES = ("AUDIT_WRITE", "SYS_CHROOT")

_FOLDER = Path(__file__).parent
_START = (_FOLDER / "start.sh").read_text("utf-8")
_RELAY = (_FOLDER / "relay.py").read_text("utf-8")
_KEEP = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
_SEED = """
set -eu
path=$1 volume=$2
[ -d "$volume/data" ] && exit 0
new=$(mktemp -d "$volume/.new-XXXXXX")
if [ -d "$path" ]; then cp -a "$path" "$new/data"; else mkdir "$new/data"; fi
sync
mv -T "$new/data" "$volume/data" || [ -d "$volume/data" ]
rm -rf "$volume"/.new-*
"""
"""All of the image's content or none: what is there already is never replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """What the operator says about all Pods."""

    pull_registry: str = ""
    """The registry's name for the nodes; empty: the same that images are pushed to."""
    pull_secret: str = ""
    probe_image: str = ""
    """By digest, under its name for the nodes; see ``NetworkProof``."""
    ephemeral_storage: str = ""
    """How much of a node's disk a workspace may use, as Kubernetes writes it; empty: no limit."""
    storage_class: str = ""
    volume_size: str = "10Gi"
    placement: PodPlacement = ANYWHERE

    def image(self, reference: str) -> str:
        """Return an image's name for the nodes."""
        if not self.pull_registry:
            return reference
        return f"{self.pull_registry}/{reference.partition('/')[2]}"


def pod_name(run_id: UUID) -> str:
    """Return the name of a run's Pod, which no two have at a time."""
    return f"svc-{run_id}"


def claim_name(workspace_id: UUID, purpose: str) -> str:
    """Return the name of a workspace's volume claim."""
    return f"svc-{workspace_id}-{purpose}"


def labels_for(request: LaunchRequest) -> dict[str, str]:
    """Return the labels of everything that a launch creates."""
    return {
        INSTANCE_LABEL: request.instance_id,
        WORKSPACE_LABEL: str(request.workspace_id),
        "svc.attempt": str(request.attempt_id),
        RUN_LABEL: str(request.run_id),
        "svc.job": str(request.job_id),
    }


def pod_for(request: LaunchRequest, options: PodOptions, token: str) -> Document:
    """Return the Pod of a launch."""
    image = options.image(request.image)
    volumes: list[Document] = [{"name": "state", "emptyDir": {}}]
    mounts: list[Document] = [{"name": "state", "mountPath": STATE_DIRECTORY}]
    if request.credentials is not None:
        volumes.append(
            {"name": "credentials", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
        )
        mounts.append({"name": "credentials", "mountPath": credentials.DIRECTORY})
    for volume in request.volumes:
        claim = claim_name(request.workspace_id, volume.purpose)
        volumes.append({"name": volume.purpose, "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": volume.purpose, "mountPath": volume.path, "subPath": "data"})
    workspace = {
        "name": WORKSPACE,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", _START, "start", _RELAY, boot.AGENT],
        "volumeMounts": mounts,
        "resources": _resources(request, options),
        "securityContext": _security(sudo=request.sudo),
    }
    specification: Document = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "hostname": f"ws-{request.workspace_id.hex[-8:]}",
        "containers": [workspace, _keeper(image)],
        "initContainers": [_seed(image, volume) for volume in request.volumes],
        "volumes": volumes,
    }
    options.placement.apply(specification)
    if options.pull_secret:
        specification["imagePullSecrets"] = [{"name": options.pull_secret}]
    if request.oci_runtime != "runc":
        specification["runtimeClassName"] = request.oci_runtime
    return {
        "metadata": {
            "name": pod_name(request.run_id),
            "labels": labels_for(request),
            "annotations": {
                ATTEMPT_COUNT: str(request.attempt_count),
                TOKEN: token,
                WORKING_DIRECTORY: request.working_directory,
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            },
        },
        "spec": specification,
    }


def _resources(request: LaunchRequest, options: PodOptions) -> Document:
    millis = round(request.cpus * 1000)
    limits = {"memory": f"{request.memory_mb}Mi", "cpu": f"{millis}m"}
    if options.ephemeral_storage:
        limits["ephemeral-storage"] = options.ephemeral_storage
    # A workspace is idle for most of its life; its memory stays its own all the time.
    return {"requests": limits | {"cpu": f"{max(10, millis // CPU_SHARE)}m"}, "limits": limits}


def _security(*, sudo: bool) -> Document:
    return {
        "privileged": False,
        # sudo is a setuid program, and this would make the kernel ignore setuid.
        "allowPrivilegeEscalation": sudo,
        "capabilities": {
            "drop": ["ALL"],
            "add": [*AGENT_CAPABILITIES, *(SUDO_CAPABILITIES if sudo else ())],
        },
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _keeper(image: str) -> Document:
    amounts = {"memory": KEEPER_MEMORY, "cpu": "10m"}
    return {
        "name": KEEPER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", _KEEP],
        "volumeMounts": [{"name": "state", "mountPath": STATE_DIRECTORY}],
        "resources": {"requests": amounts, "limits": amounts | {"cpu": "500m"}},
        "securityContext": {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _seed(image: str, volume: Volume) -> Document:
    """Return what fills an empty volume with what the image has in its place."""
    place = f"/svc-volume/{volume.purpose}"
    amounts = {"memory": "64Mi", "cpu": "100m"}
    return {
        "name": f"seed-{volume.purpose}",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", _SEED, "seed", volume.path, place],
        "volumeMounts": [{"name": volume.purpose, "mountPath": place}],
        "resources": {"requests": amounts, "limits": amounts | {"cpu": "1"}},
        "securityContext": {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
