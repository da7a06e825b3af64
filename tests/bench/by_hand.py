"""What a person does with the engine's own command line, to hold ours against it."""

from __future__ import annotations

import os
import subprocess
import uuid

from django.conf import settings

from tests.support.waiting import LONG_WAIT


class ByHand:
    """One container of an image, with the engine's own command line."""

    def __init__(self, image: str, *, network: bool = False) -> None:
        self._program = settings.DOCKER_CLI
        self._image = image
        self._env = {**os.environ, "DOCKER_HOST": settings.DOCKER_HOST}
        self._name = f"bench-{uuid.uuid4().hex[:12]}"
        self._network = network

    def start(self) -> None:
        """``docker run``, where that is wanted after ``docker network create``."""
        label = f"svc.instance={settings.SVC_INSTANCE_ID}"  # removed with the rest in any case
        options = ["--detach", "--init", "--name", self._name, "--label", label]
        if self._network:
            self._docker("network", "create", "--label", label, self._name)
            options += ["--network", self._name]
        self._docker("run", *options, "--entrypoint", "/bin/sleep", self._image, "infinity")

    def stop(self) -> None:
        """``docker stop`` and ``docker rm``."""
        self._docker("stop", self._name)
        self._docker("rm", self._name)

    def tidy(self) -> None:
        """Remove the network."""
        if self._network:
            self._docker("network", "rm", self._name)

    def _docker(self, *arguments: str) -> None:
        command = [self._program, *arguments]
        subprocess.run(
            command, env=self._env, stdout=subprocess.DEVNULL, check=True, timeout=LONG_WAIT
        )
