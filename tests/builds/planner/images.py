"""Builds plans with the real engine, for the tests of the planner's scripts."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from django.conf import settings

from builds.planner import Catalogue, ImagePlan
from registries.services import configured_registry
from tests.builds.bench import Bench

_DOCKER = (settings.DOCKER_CLI, "--host", settings.DOCKER_HOST)

CATALOGUE = Catalogue(settings.SVC_BASE_IMAGES)

PACKAGES_WAIT = 600.0
"""Seconds: the first build installs what all images share."""

AGENT = b"#!/bin/sh\necho agent $*\n"


def extra_ca() -> bytes:
    """Return a certificate of nobody, and those this machine needs to reach package registries."""
    paths = [Path(__file__).parent / "extra-ca.pem"]
    if settings.SVC_EXTRA_CA_FILE:
        paths.append(Path(settings.SVC_EXTRA_CA_FILE))
    else:
        paths += sorted(Path("/usr/local/share/ca-certificates").glob("**/*.crt"))
    return b"\n".join(path.read_bytes() for path in paths)


def build(plan: ImagePlan, folder: Path, *, ca: bytes = b"", agent: bytes = AGENT) -> str:
    """Return the tag of the image; raise ``BuildError`` with the output's end if it fails.

    Each source of the plan is a folder with a README. The agent only says that it started, unless
    the test brings one.
    """
    checkouts = {}
    for source in plan.sources:
        checkouts[source.id] = folder / source.id
        checkouts[source.id].mkdir()
        (checkouts[source.id] / "README").write_text("from the source\n")
    with closing(configured_registry()) as registry:
        bench = Bench(folder / "builds", registry, build_timeout=PACKAGES_WAIT)
        return bench.build(plan, checkouts, agent=agent, ca=ca).local_tag


def run(tag: str, script: str, *, options: tuple[str, ...] = ()) -> str:
    """Return what ``script`` prints in a new container of the image, which has no network."""
    done = subprocess.run(
        [
            *(*_DOCKER, "run", "--rm", "--network=none", "--entrypoint=/bin/bash"),
            *(*options, tag, "-ec", script),
        ],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")
    return done.stdout.decode()


def environment_of(tag: str) -> Mapping[str, str]:
    """Return the environment that the image gives to its processes."""
    lines = run(tag, "env").splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def remove(tag: str) -> None:
    """Remove the image."""
    subprocess.run([*_DOCKER, "rmi", "--force", tag], capture_output=True, check=False)
