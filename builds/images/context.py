"""The build context of a plan, written so that equal input gives equal bytes.

Steps of earlier builds are taken again by contents, owners and modes. So nothing of the moment or
of this machine gets in: modes are set whatever the umask, owners are the plan's user, entries are
sorted, and all times are those of the commit.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from builds.planner import ImagePlan, StepFiles
from controlplane.errors import JobError

# Folders that a distribution brings along: a source below them must not change them.
_SYSTEM = frozenset(
    {
        *("bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "media", "mnt"),
        *("opt", "proc", "root", "run", "sbin", "srv", "sys", "tmp", "usr", "var"),
    }
)
_DEEP_SYSTEM = frozenset({"dev", "etc", "proc", "sys", "usr", "var"})
"""Those whose own folders belong to the distribution as well."""


class BuildError(JobError):
    """An image could not be built or published; ``code`` says why.

    ``build-write-context-failed`` our disk; ``build-command-failed`` the builder ended with an exit
    code other than 0 or by a signal, and the message says which; ``build-timed-out``;
    ``build-cancelled``; ``push-failed``; ``push-timed-out``; ``adapter-unavailable`` the engine
    does not answer.
    """


def write_context(
    plan: ImagePlan,
    into: Path,
    *,
    checkouts: Mapping[str, Path],
    agent: bytes,
    extra_ca: bytes,
) -> None:
    """Make the folder ``into`` the build context of ``plan``.

    ``checkouts`` has the folder of each of the plan's sources, whose own modification time becomes
    the time of everything in it. Raises :class:`BuildError` ``build-write-context-failed``.
    """
    try:
        into.mkdir(mode=0o755)
        _write(into, "Dockerfile", plan.dockerfile.encode(), 0o644)
        for file in plan.files:
            _write(into, file.path, file.content, file.mode)
        _write(into, "extra-ca.crt", extra_ca, 0o644)
        _write(into, "svc-agent", agent, 0o755)
        _write_sources(plan, into / "sources.tar", checkouts)
    except OSError as error:
        raise BuildError(
            "build-write-context-failed",
            f"The build context could not be written: {error.strerror or 'unknown error'}.",
        ) from error


def open_archive(context: Path, files: StepFiles) -> io.BytesIO | io.BufferedReader:
    """Open the tar archive that puts files of a build context into the root of an image."""
    if files.is_archive:
        (name,) = files.names
        return (context / name).open("rb")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in files.names:
            path = context / name
            folder = files.destination.endswith("/")
            member = f"{files.destination}{path.name}" if folder else files.destination
            entry = tarfile.TarInfo(member.lstrip("/"))
            entry.size, entry.mode = path.stat().st_size, stat.S_IMODE(path.stat().st_mode)
            with path.open("rb") as content:
                tar.addfile(entry, content)
    archive.seek(0)
    return archive


def _write(into: Path, name: str, content: bytes, mode: int) -> None:
    if _is_outside(name):
        raise BuildError(
            "build-write-context-failed", "A file of the plan lies outside the build context."
        )
    path = into / name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    path.write_bytes(content)
    path.chmod(mode)


def _is_outside(name: str) -> bool:
    return name.startswith("/") or not name or ".." in PurePosixPath(name).parts


def _write_sources(plan: ImagePlan, archive: Path, checkouts: Mapping[str, Path]) -> None:
    """Write the archive of all sources, owned by the plan's user.

    It always has an entry, the working directory: engines take a tar without one for a plain file.
    """
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        writer = _Writer(tar, plan)
        for source in plan.sources:
            writer.add_checkout(checkouts[source.id], source.destination)
        writer.add_folder(_member_name(plan.working_directory), 0)
    archive.chmod(0o644)


def _member_name(destination: str) -> str:
    """Return the archive name of an absolute path, which cannot lead out of the image's root."""
    name = destination.lstrip("/")
    if not destination.startswith("/") or _is_outside(name):
        raise BuildError(
            "build-write-context-failed", "A source's destination is not an absolute path."
        )
    return str(PurePosixPath(name))


class _Writer:
    """Adds folders and checkouts to the archive, each entry once."""

    def __init__(self, tar: tarfile.TarFile, plan: ImagePlan) -> None:
        self._tar = tar
        self._plan = plan
        self._known: set[str] = set()

    def add_checkout(self, checkout: Path, destination: str) -> None:
        name = _member_name(destination)
        root = checkout.lstat()
        if not stat.S_ISDIR(root.st_mode):
            raise NotADirectoryError(20, "a checkout is not a folder")
        moment = int(root.st_mtime)
        self.add_folder(name, moment)
        for path, relative in _walk(checkout):
            self._add_path(path, f"{name}/{relative}", moment)

    def add_folder(self, name: str, moment: int) -> None:
        """Add a folder and those above it, except the system's and the user's home."""
        parts = PurePosixPath(name).parts
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth])
            ours = depth == len(parts) or not self._belongs_to_system(folder)
            if ours and folder not in self._known:
                self._known.add(folder)
                self._tar.addfile(self._entry(folder, 0o755, moment, tarfile.DIRTYPE))

    def _belongs_to_system(self, folder: str) -> bool:
        parts = folder.split("/")
        if "/" + folder == self._plan.home:
            return True
        depth = 3 if parts[0] in _DEEP_SYSTEM else 1
        return parts[0] in _SYSTEM and len(parts) <= depth

    def _add_path(self, path: Path, name: str, moment: int) -> None:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            entry = self._entry(name, 0o777, moment, tarfile.SYMTYPE)
            entry.linkname = os.readlink(path)  # noqa: PTH115 - the target as it is, not as a path
            self._tar.addfile(entry)
        elif stat.S_ISDIR(found.st_mode):
            self._tar.addfile(self._entry(name, 0o755, moment, tarfile.DIRTYPE))
        elif stat.S_ISREG(found.st_mode):
            mode = 0o755 if found.st_mode & 0o100 else 0o644
            with path.open("rb") as content:
                entry = self._entry(name, mode, moment, tarfile.REGTYPE)
                entry.size = os.fstat(content.fileno()).st_size
                self._tar.addfile(entry, content)
        else:
            raise OSError(22, "a checkout holds a special file")

    def _entry(self, name: str, mode: int, moment: int, kind: bytes) -> tarfile.TarInfo:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode, entry.mtime = kind, mode, moment
        entry.uid, entry.gid = self._plan.uid, self._plan.gid
        return entry


def _walk(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield everything below ``root``, folders first, in an order that the names alone decide."""
    pending = [""]
    while pending:
        relative = pending.pop()
        if relative:
            yield root / relative, relative
        folder = root / relative
        if folder.is_dir() and not (relative and folder.is_symlink()):
            names = sorted((os.fsencode(path.name), path.name) for path in folder.iterdir())
            prefix = f"{relative}/" if relative else ""
            pending.extend(prefix + name for _, name in reversed(names))
