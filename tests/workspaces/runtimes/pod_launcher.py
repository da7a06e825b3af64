"""Launches of Pods, as a worker would make them, and what the cluster says of them afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.stack.cluster import Namespace
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import Launcher
from workspaces.runtimes.kubernetes import KubernetesAdapter
from workspaces.runtimes.kubernetes.cluster import CLAIMS, PODS, Conflict, Document, labels_of
from workspaces.runtimes.kubernetes.pods import PodOptions


class PodLauncher(Launcher):
    """A launcher whose workspaces are Pods of a namespace."""

    adapter: Any

    @classmethod
    def of(cls, place: Namespace, launcher: Launcher, **options: Any) -> PodLauncher:
        """Make one of an installation of its own, which has the Role and no other right."""
        probe_image = PodOptions(pull_registry=place.pull_registry).image(launcher.image)
        chosen = {"probe_image": probe_image, "volume_size": "64Mi"} | options.pop("pods", {})
        pod_options = PodOptions(
            pull_registry=place.pull_registry, pull_secret=place.pull_secret, **chosen
        )
        adapter = KubernetesAdapter(
            launcher.instance_id,
            place.name,
            kubeconfig=place.kubeconfig,
            options=pod_options,
            **{"guarded": False, "agent_silence": LONG_WAIT, "start_timeout": LONG_WAIT} | options,
        )
        made = cls(adapter, launcher.client, launcher.image, launcher.instance_id)  # type: ignore[arg-type]
        made.place = place
        # A probe takes some seconds, and says the same to all.
        place.proof = adapter.proof = place.proof or adapter.proof
        return made

    place: Namespace

    def pods(self) -> list[Document]:
        """The installation's Pods."""
        labels = {"svc.instance": self.instance_id}
        return self.place.admin.list(PODS, labels)

    def pod(self, run_id: object) -> Document:
        """The Pod of a run."""
        (found,) = [each for each in self.pods() if labels_of(each).get("svc.run") == str(run_id)]
        return found

    def left_over(self) -> list[str]:
        """The names of its Pods that are not going away."""
        return [
            each["metadata"]["name"]
            for each in self.pods()
            if "deletionTimestamp" not in each["metadata"]
        ]

    @contextlib.contextmanager
    def place_in_reach(self) -> Iterator[tuple[str, int]]:
        """Have a server that a Pod with a network could reach: the cluster's own."""
        server = self.place.admin.access.server()
        yield server.host, server.port

    def clean_up(self) -> None:
        """Remove what is left, without waiting for it."""
        self.adapter.execs.close()
        for kind in (PODS, CLAIMS):
            for each in self.place.admin.list(kind, {"svc.instance": self.instance_id}):
                metadata = each["metadata"]
                with contextlib.suppress(Conflict):
                    grace = 0 if kind == PODS else None
                    self.place.admin.delete(
                        kind, metadata["name"], uid=metadata["uid"], grace=grace
                    )
