"""What the Docker Engine has of the chaos tests, and how it gets rid of it."""

from __future__ import annotations

import docker
from docker.errors import APIError
from docker.models.containers import Container
from docker.models.networks import Network

from tests.stack.processes import wait_for
from tests.stack.sandboxes import LET_GO, Started
from tests.support.waiting import LONG_WAIT


class Engine:
    """The machine's engine, of which only what carries the label of one instance is looked at."""

    def __init__(self, docker_host: str, instance_id: str, push_registry: str) -> None:
        self._client = docker.DockerClient(docker_host, timeout=int(LONG_WAIT))
        self._label = f"svc.instance={instance_id}"
        self._push_registry = push_registry

    def containers(self, job: Started | None = None) -> list[Container]:
        """Return the containers of the instance, or of one run, ended ones included."""
        labels = [self._label]
        if job is not None:
            labels.append(f"svc.run={job.run_id}")
        found: list[Container] = self._client.containers.list(
            all=True, filters={"label": labels}, ignore_removed=True
        )
        return found

    def let_go(self, job: Started) -> None:
        """Let what is held in the job's workspace begin."""
        (container,) = self.containers(job)
        assert container.exec_run(["touch", LET_GO], user="root").exit_code == 0

    def strays(self) -> list[str]:
        """Return what containers of the instance are there that no launch has made."""
        found = [each for each in self.containers() if "svc.run" not in each.labels]
        return [f"{each.name} ({each.status}): {each.labels}" for each in found]

    def networks(self) -> list[Network]:
        """Return the networks of the instance."""
        found: list[Network] = self._client.networks.list(filters={"label": self._label})
        return found

    def local_names(self, job: Started) -> list[str]:
        """Return the names that the job's images have in the engine."""
        listed = self._client.api.images()
        names = [name for image in listed for name in image["RepoTags"] or ()]
        wanted = (f"svc-build/{job.job_id}:", f"{self._push_registry}/{job.repository}:")
        return [name for name in names if name.startswith(wanted)]

    def remove_containers(self) -> None:
        """Remove the containers and networks of this instance."""
        wait_for(self._removed, "its containers and networks are gone")

    def _removed(self) -> bool:
        """Remove what is there; the engine may still be at what a killed worker asked it for."""
        things: list[Container | Network] = [*self.containers(), *self.networks()]
        for thing in things:
            try:
                if isinstance(thing, Container):
                    thing.remove(force=True, v=True)
                else:
                    thing.remove()
            except APIError as error:  # gone, in use by a container that goes, or just going
                if error.status_code not in (403, 404, 409):
                    raise
        return not self.containers() and not self.networks()

    def volumes(self) -> list[str]:
        """Return the names of the installation's volumes."""
        return [
            str(volume.name) for volume in self._client.volumes.list(filters={"label": self._label})
        ]

    def remove_volumes(self) -> None:
        """Remove the installation's volumes."""
        for volume in self._client.volumes.list(filters={"label": self._label}):
            volume.remove(force=True)

    def remove_images(self) -> None:
        """Remove the named images of this instance."""
        for image in self._client.images.list(
            all=True, filters={"label": self._label, "dangling": False}
        ):
            self._client.images.remove(str(image.id), force=True)

    def close(self) -> None:
        """Let go of the connection to the engine."""
        self._client.close()
