"""Folders and files of this machine as what is sent to a workspace, and back."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

CHUNK_BYTES = 256 * 1024
MAX_PATH_BYTES = 4_000


def packed(folder: Path, keep: Callable[[Path], bool] | None = None) -> IO[bytes]:
    """Return a temporary file with a tar of what is in ``folder``, from its beginning.

    ``keep`` is asked for each path relative to the folder; a folder that is not kept is left out
    with all that is in it.
    """

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = Path(entry.name)
        plain = entry.isfile() or entry.isdir() or entry.issym() or entry.islnk()
        return entry if plain and (keep is None or path == Path() or keep(path)) else None

    file = tempfile.TemporaryFile()  # noqa: SIM115 (whoever asked closes it)
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(folder, arcname=".", filter=kept)
    file.seek(0)
    return file


def unpacked(file: IO[bytes], folder: Path) -> list[str]:
    """Unpack a tar into ``folder``; return the names that were left out.

    Left out is what would lead to places outside of the folder, as a link to an absolute path does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left_out = []
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for entry in archive:
            if not _extracted(archive, entry, folder):
                left_out.append(entry.name)
    return left_out


def _extracted(archive: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path) -> bool:
    if hasattr(tarfile, "data_filter"):
        try:
            archive.extract(entry, folder, filter="data")
        except tarfile.FilterError:
            return False
        return True
    # Python before 3.10.12 and 3.11.4, as Debian 12 has it.
    if not _stays_within(entry, folder.resolve()):
        return False
    entry.mode &= 0o755
    if entry.isfile():
        entry.mode |= 0o600
    if entry.isdir():
        entry.mode |= 0o700
    entry.uid, entry.gid, entry.uname, entry.gname = os.getuid(), os.getgid(), "", ""
    archive.extract(entry, folder)
    return True


def _stays_within(entry: tarfile.TarInfo, root: Path) -> bool:
    if not (entry.isfile() or entry.isdir() or entry.issym() or entry.islnk()):
        return False
    name, link = Path(entry.name), Path(entry.linkname)
    if name.is_absolute() or link.is_absolute():
        return False
    places = [name]
    if entry.issym():
        places.append(name.parent / link)
    elif entry.islnk():
        places.append(link)
    for place in places:
        path = os.path.realpath(root / place)
        # Links in what is longer than the system takes are not followed here.
        if not Path(path).is_relative_to(root) or len(os.fsencode(path)) >= MAX_PATH_BYTES:
            return False
    return True
