"""Folders as tar streams, both ways, in little memory however large they are.

What comes in is unpacked beside its place and put there when all of it has come: until then the
workspace's own files are as they were.
"""

from __future__ import annotations

import os
import stat
import tarfile
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .access import AccessLog
from .entries import open_regular, require_regular
from .files_wire import DATA, END, HEAD, CallerGone, Refusal, Wire
from .unpacking import Unpacked
from .writing import remove_made

_GATHERED_BYTES = 256 * 1024
_SMALL_BYTES = 64 * 1024
_TYPES = (
    (stat.S_ISREG, tarfile.REGTYPE),
    (stat.S_ISDIR, tarfile.DIRTYPE),
    (stat.S_ISLNK, tarfile.SYMTYPE),
)


def pack(wire: Wire, log: AccessLog, spec: Dict[str, Any], path: bytes) -> None:
    """Send a folder, or one file, as a tar: all of it, or the stream has no END.

    Links are sent as links. FIFOs, sockets and devices are left out of a folder, as no archive may
    bring them back, and refused alone. Raises Refusal or OSError.
    """
    top = path.rstrip(b"/") or b"/"
    status = os.stat(top)
    is_folder = stat.S_ISDIR(status.st_mode)
    if not is_folder:
        require_regular(status)
    for place, status in _walk(top):
        _require_readable(place, status)
    log.tell("pack", top)
    wire.send_json(HEAD, {})
    sink = _Sink(wire)
    for place, status in _walk(top):
        name = os.path.relpath(place, top) if is_folder else os.path.basename(top)
        _pack_one(sink, place, name, status)
    sink.put(bytes(2 * tarfile.BLOCKSIZE))
    sink.flush()
    wire.send_json(END, {})


def _walk(top: bytes) -> Iterator[Tuple[bytes, os.stat_result]]:
    """The thing itself and all below it, folders before what is in them."""
    yield top, os.stat(top)
    folders = [top] if os.path.isdir(top) else []
    while folders:
        folder = folders.pop()
        try:
            found = os.scandir(folder)
        except FileNotFoundError:
            continue  # removed since
        with found:
            for entry in found:
                place: bytes = entry.path
                try:
                    status = os.lstat(place)
                except FileNotFoundError:
                    continue  # removed since
                yield place, status
                if stat.S_ISDIR(status.st_mode):
                    folders.append(place)


def _require_readable(place: bytes, status: os.stat_result) -> None:
    wanted = os.R_OK
    if stat.S_ISDIR(status.st_mode):
        wanted |= os.X_OK
    elif not stat.S_ISREG(status.st_mode):
        return
    if not os.access(place, wanted) and os.path.lexists(place):
        shown = place.decode("utf-8", "replace")
        message = f"The workspace's user may not read {shown}."
        raise Refusal("file-permission-denied", message)


def _pack_one(sink: _Sink, place: bytes, name: bytes, status: os.stat_result) -> None:
    kind = next((kind for is_kind, kind in _TYPES if is_kind(status.st_mode)), None)
    if kind is None:
        return
    fd = -1
    try:
        if kind == tarfile.REGTYPE:
            fd = open_regular(place)
            status = os.fstat(fd)
        sink.put(_header(name, kind, status, place))
        if fd >= 0:
            sink.put_file(fd, status.st_size)
            sink.put(bytes(-status.st_size % tarfile.BLOCKSIZE))
    except FileNotFoundError:
        return  # removed since
    finally:
        if fd >= 0:
            os.close(fd)


def _header(name: bytes, kind: bytes, status: os.stat_result, place: bytes) -> bytes:
    member = tarfile.TarInfo(os.fsdecode(name))
    member.type = kind
    member.mode = stat.S_IMODE(status.st_mode)
    member.uid, member.gid = status.st_uid, status.st_gid
    member.mtime = int(status.st_mtime)
    if kind == tarfile.REGTYPE:
        member.size = status.st_size
    elif kind == tarfile.SYMTYPE:
        member.linkname = os.fsdecode(os.readlink(place))
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class _Sink:
    """Gathers small pieces into frames; large files are sent by the kernel."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._gathered = bytearray()

    def put(self, piece: bytes) -> None:
        self._gathered += piece
        if len(self._gathered) >= _GATHERED_BYTES:
            self.flush()

    def put_file(self, fd: int, size: int) -> None:
        if size > _SMALL_BYTES:
            self.flush()
            self._wire.send_file(fd, 0, size)
            return
        content = os.pread(fd, size, 0) if size else b""
        if len(content) != size:
            raise CallerGone  # it has become shorter than its header says
        self.put(content)

    def flush(self) -> None:
        if self._gathered:
            self._wire.send(DATA, bytes(self._gathered))
            self._gathered.clear()


def unpack(wire: Wire, log: AccessLog, spec: Dict[str, Any], path: bytes) -> None:
    """Put what a tar holds into a folder, which is made if need be, and keep what else is there."""
    unpacked: Optional[Unpacked] = None
    target = os.path.realpath(path)
    made: List[bytes] = []
    try:
        unpacked = Unpacked(target, made)
        wire.send_json(HEAD, {})
        unpacked.take(wire)
        unpacked.require_room()
        told = {"size": unpacked.size, "sha256": unpacked.sha256, "files": unpacked.files}
        with log.change("unpack", target, **told):
            unpacked.place()
        made.clear()
    finally:
        if unpacked is not None:
            unpacked.discard()
        remove_made(made)
    wire.send_json(END, {"files": unpacked.files, "size": unpacked.size})
