"""Running a package manager in a container of its family's base image.

The container is the engine's to remove when it ends, whatever becomes of us; one that was made and
never started is found by its labels and removed by the next reading or look.
"""

from __future__ import annotations

import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import IO, Final

import structlog
from django.conf import settings

from controlplane.folders import scratch_folder
from controlplane.security.redaction import bounded_tail, redact
from controlplane.subprocesses import ProcessResult, ProcessStartError, Tail, run_process
from workspaces.families import OsFamily

from .readers import MAX_LINE, reading_script

log = structlog.get_logger(__name__)

MAX_LISTING_BYTES: Final = 512 * 1024**2
_CLEANUP_SECONDS: Final = 30.0
_CREATE_SECONDS: Final = 60.0
"""A stop waits for it, which an engine that hangs must not make long."""
_TOLD_BYTES: Final = 4 * 1024
_LABEL: Final = "svc.packages"
_PLACE: Final = "/usr/share/svc"
_NOT_MADE: Final = "The engine could not make the container"


class PackageReadingError(Exception):
    """A distribution's index could not be read; the text is for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageEngine:
    """The engine that readings use, and what their containers are made with."""

    docker_cli: str
    docker_host: str
    instance_id: str
    base_images: Mapping[str, str]
    extra_ca: bytes
    timeout: float
    """Seconds for one reading, with pulling the base image where the engine lacks it."""

    @contextmanager
    def listing(self, family: OsFamily, *, cancelled: threading.Event) -> Iterator[Iterator[str]]:
        """Yield what the family's package manager lists; see :mod:`.readers`.

        :raises PackageReadingError: it could not be asked, failed, or took too long.
        """
        with tempfile.TemporaryFile() as output:
            container = self._create(family, cancelled)
            try:
                if cancelled.is_set():
                    raise PackageReadingError("The reading was stopped before it began.")
                self._give(container, family)
                self._read(container, output, cancelled)
            finally:
                self._remove(container)
            output.seek(0)
            with open(
                output.fileno(), encoding="utf-8", errors="replace", newline="\n", closefd=False
            ) as lines:
                yield iter(partial(lines.readline, MAX_LINE + 1), "")

    def families_at_work(self) -> set[str]:
        """Return the families for which the engine has a container, perhaps one that was left."""
        shown = ("--format", f'{{{{.Label "{_LABEL}"}}}}')
        return set(self._listed(*shown, "--filter", f"label={_LABEL}"))

    def remove_leftovers(self, family: OsFamily) -> int:
        """Remove containers of readings that nobody is at; the caller holds the family's lock."""
        left = self._listed("--quiet", "--filter", f"label={_LABEL}={family.name}")
        for container in left:
            self._remove(container)
        if left:
            log.warning("package_readings_removed", family=family.name, containers=len(left))
        return len(left)

    def _listed(self, *arguments: str) -> list[str]:
        ours = ("--filter", f"label=svc.instance={self.instance_id}")
        found = self._run("ps", "--all", *ours, *arguments, seconds=_CLEANUP_SECONDS)
        return found.stdout.decode("ascii", "replace").split() if found.ok else []

    # ------------------------------------------------------------ steps

    def _create(self, family: OsFamily, cancelled: threading.Event) -> str:
        image = self.base_images[family.name]
        self._have(image, cancelled)
        if cancelled.is_set():
            raise PackageReadingError(f"{_NOT_MADE}: it was stopped.")
        name = f"svc-packages-{family.name}-{uuid.uuid4().hex}"
        # To the end, as an engine that nobody waits for may make the container after its removal.
        made = self._run(
            *("create", "--pull", "never", "--rm", "--name", name),
            *("--user", "0:0", "--workdir", "/"),
            *("--label", f"svc.instance={self.instance_id}", "--label", f"{_LABEL}={family.name}"),
            *("--security-opt", "no-new-privileges", "--pids-limit", "1024"),
            *("--log-driver", "none", "--entrypoint", "/bin/sh"),
            *("--env", "LC_ALL=C.UTF-8", "--env", "DEBIAN_FRONTEND=noninteractive"),
            *(image, "-c"),
            f'/bin/sh {_PLACE}/install/trust.sh "$1" "$2" >&2 && exec /bin/sh {_PLACE}/packages.sh',
            *("sh", family.anchors, family.certificates),
            seconds=min(self.timeout, _CREATE_SECONDS),
        )
        if not made.ok:
            # The engine may have made it before we gave up.
            self._remove(name)
            raise _failure(_NOT_MADE, made)
        return name

    def _have(self, image: str, cancelled: threading.Event) -> None:
        """Pull an image that the engine lacks."""
        looked_up = ("image", "inspect", "--format", "{{.Id}}", image)
        if self._run(*looked_up, seconds=_CLEANUP_SECONDS).ok or cancelled.is_set():
            return
        pulled = self._run("pull", "--quiet", image, seconds=self.timeout, cancelled=cancelled)
        if not pulled.ok:
            raise _failure(_NOT_MADE, pulled)

    def _give(self, container: str, family: OsFamily) -> None:
        """Put the script, and the operator's certificates, into the container."""
        with scratch_folder("packages") as folder:
            place = folder / "svc"
            (place / "install").mkdir(parents=True)
            (place / "packages.sh").write_bytes(reading_script(family.package_manager))
            trust = files("builds.planner").joinpath("install", "trust.sh")
            (place / "install" / "trust.sh").write_bytes(trust.read_bytes())
            (place / "install" / "extra-ca.crt").write_bytes(self.extra_ca)
            given = self._run(
                "cp", str(place), f"{container}:{Path(_PLACE).parent}", seconds=self.timeout
            )
        if not given.ok:
            raise _failure("The engine would not take the script", given)

    def _read(self, container: str, output: IO[bytes], cancelled: threading.Event) -> None:
        errors = Tail(_TOLD_BYTES)
        listed = 0

        def take(stream: str, chunk: bytes) -> None:
            nonlocal listed
            if stream == "stderr":
                errors.feed(chunk)
                return
            listed += len(chunk)
            if listed > MAX_LISTING_BYTES:
                raise PackageReadingError("The package manager's listing has no end.")
            output.write(chunk)

        ended = self._run(
            *("start", "--attach", container),
            seconds=self.timeout,
            cancelled=cancelled,
            streams=take,
        )
        if not ended.ok:
            raise _failure("The package manager failed", ended, errors.bytes())

    def _remove(self, container: str) -> None:
        """Remove a container; it may be gone, and a failure leaves it to the next look."""
        try:
            self._run("rm", "--force", "--volumes", container, seconds=_CLEANUP_SECONDS)
        except PackageReadingError:
            log.warning("package_reading_left", container=container)

    def _run(
        self,
        *arguments: str,
        seconds: float,
        cancelled: threading.Event | None = None,
        streams: Callable[[str, bytes], None] | None = None,
    ) -> ProcessResult:
        passed = ("PATH", "HOME", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
        env = {name: os.environ[name] for name in passed if name in os.environ}
        env |= {"DOCKER_HOST": self.docker_host, "LC_ALL": "C", "DOCKER_CLI_HINTS": "false"}
        try:
            return run_process(
                [self.docker_cli, *arguments],
                env=env,
                timeout=seconds,
                cancelled=cancelled,
                streams=streams,
                tail_limit=_TOLD_BYTES,
                stdout_limit=_TOLD_BYTES,
            )
        except ProcessStartError as error:
            raise PackageReadingError(str(error)) from None


def configured_engine() -> PackageEngine:
    """Return the engine of the settings."""
    extra_ca = settings.SVC_EXTRA_CA_FILE
    return PackageEngine(
        docker_cli=settings.DOCKER_CLI,
        docker_host=settings.DOCKER_HOST,
        instance_id=settings.SVC_INSTANCE_ID,
        base_images=settings.SVC_BASE_IMAGES,
        extra_ca=Path(extra_ca).read_bytes() if extra_ca else b"",
        timeout=settings.PACKAGE_SYNC_TIMEOUT_MS / 1000,
    )


def _failure(what: str, ended: ProcessResult, told: bytes | None = None) -> PackageReadingError:
    """Return the error for a command that did not end well, in its own last words."""
    if ended.cancelled:
        return PackageReadingError(f"{what}: it was stopped.")
    how = "it took too long" if ended.timed_out else ended.ending
    words = bounded_tail(redact(ended.tail if told is None else told), _TOLD_BYTES).strip()
    return PackageReadingError(f"{what} ({how}):\n{words}" if words else f"{what} ({how}).")
