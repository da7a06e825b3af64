"""What the description says of files and ports."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

FILE_TYPE = "application/octet-stream"
ARCHIVE_TYPE = "application/x-tar"


def _header(name: str, description: str, *statuses: int) -> OpenApiParameter:
    return OpenApiParameter(
        name,
        str,
        OpenApiParameter.HEADER,
        description=description,
        response=list(statuses) or False,
    )


IF_MATCH = _header("If-Match", "Only if the file has one of these hashes, or exists (`*`).")
IF_NONE_MATCH = _header("If-None-Match", "Only if it has none of these, or does not exist (`*`).")
RANGE = _header("Range", "One range, like `bytes=0-1023` or `bytes=-500`.")
IF_RANGE = _header("If-Range", "The range only if the file has this hash, otherwise all of it.")
READ_HEADERS = [
    IF_MATCH,
    IF_NONE_MATCH,
    RANGE,
    IF_RANGE,
    _header("ETag", "The SHA-256 of the whole file, in quotes.", 200, 206, 304),
    _header("Accept-Ranges", "`bytes`.", 200, 206),
    _header("Content-Range", "The bytes sent, and the size of the file.", 206),
]
WRITE_HEADERS = [
    IF_MATCH,
    IF_NONE_MATCH,
    _header("ETag", "The SHA-256, in quotes.", 200, 201),
    _header("Location", "Where the file can be read.", 201),
]
FILE_BODY = {FILE_TYPE: OpenApiTypes.BINARY}
ARCHIVE_BODY = {ARCHIVE_TYPE: OpenApiTypes.BINARY}
READ_RESPONSES = {
    (200, FILE_TYPE): OpenApiTypes.BINARY,
    (206, FILE_TYPE): OpenApiTypes.BINARY,
    304: None,
}
ARCHIVE_RESPONSES = {(200, ARCHIVE_TYPE): OpenApiTypes.BINARY}

_SHARED = """
| Status | `code` | When |
|---|---|---|
| 404 | `workspace-not-found` | the owner has no such workspace |
| 409 | `workspace-not-ready` | the workspace is not running; `reason` says why |
| 502 | `workspace-unreachable` | its agent does not answer, or ended during the call |
| 503 | `access-not-recorded` | its record is full; nothing is done unrecorded |
| 503 | `too-many-file-calls` | too many calls of this workspace are waiting; see `Retry-After` |
"""
_PATHS = """\
| 400 | `file-name-too-long`, `file-link-loop` | the path is not valid |
| 403 | `file-permission-denied` | the workspace's user may not do this |
| 404 | `file-not-found` | there is no such file or folder |
"""
_NO_FILE = "| 409 | `not-a-file` | it is a folder, FIFO, socket or device |\n"
_CONDITION = "| 412 | `precondition-failed` | a condition is not met |\n"
_DISK = "| 507 | `workspace-disk-full` | the workspace's disk is full; nothing was changed |\n"

READ_DESCRIPTION = (
    """\
Sends a file, or one range of it, as the workspace's user sees it. Links are followed. `ETag` is the
SHA-256 of the whole file, so a changed file is never mistaken for the one before; if the content
changes while it is sent, the answer ends early. The read is an event of the workspace's boot run.
"""
    + _SHARED
    + _PATHS
    + _NO_FILE
    + _CONDITION
    + "| 416 | `range-not-satisfiable` | the file is shorter; `Content-Range` has its size |\n"
)
WRITE_DESCRIPTION = (
    """\
Stores the body, of whatever type, as a file. Programs see either the old or the new content, never
a part; after the answer the content is on disk. Missing folders are created, links are followed,
and an existing file keeps its permissions. Of several writes with the same `If-Match`, or with
`If-None-Match: *`, one succeeds. An interrupted upload changes nothing.
"""
    + _SHARED
    + _PATHS
    + _NO_FILE
    + "| 409 | `file-in-use` | another program has locked the folder |\n"
    + _CONDITION
    + "| 413 | `body-too-large` | it is larger than the installation accepts |\n"
    + _DISK
)
REMOVE_DESCRIPTION = (
    """\
Removes a file, a link (not its target), an empty folder or, with `recursive`, a folder with
everything in it. A folder has no hash, so it only meets `If-Match: *`.
"""
    + _SHARED
    + _PATHS
    + "| 409 | `directory-not-empty` | use `recursive=true` |\n"
    + "| 409 | `not-a-directory` | the path ends in a slash, but does not lead to a folder |\n"
    + _CONDITION
)
STAT_DESCRIPTION = "Describes what is at a path; for a link, the link itself.\n" + _SHARED + _PATHS
LIST_DESCRIPTION = (
    """\
Lists the entries of a folder, in the order of their names' bytes, with their `stat`. A name that is
not UTF-8 is also given as `nameBase64`.
"""
    + _SHARED
    + _PATHS
    + "| 409 | `not-a-directory` | it is not a folder |\n"
)
MOVE_DESCRIPTION = (
    """\
Moves or renames a file, link or folder on the same disk. Without `overwrite` nothing is replaced,
not even what a program of the workspace makes at the same moment, wherever the disk can do that.
"""
    + _SHARED
    + _PATHS
    + "| 400 | `bad-path` | a folder cannot be moved into itself |\n"
    + "| 409 | `file-exists` | the name is taken, and `overwrite` is not set |\n"
    + "| 409 | `file-other-disk` | the places are on different disks |\n"
)
MAKE_DESCRIPTION = (
    "Creates a folder.\n"
    + _SHARED
    + _PATHS
    + "| 409 | `file-exists` | the name is taken |\n"
    + _DISK
)
PACK_DESCRIPTION = (
    """\
Sends a folder, or a file, as a tar, with links as links and names as they are. FIFOs, sockets and
devices are left out. An archive that cannot be completed ends early, without the chunk that ends a
body.
"""
    + _SHARED
    + _PATHS
    + "| 409 | `not-a-file` | it is a FIFO, socket or device |\n"
)
UNPACK_DESCRIPTION = (
    """\
Unpacks a tar (not compressed) into a folder, which is created if needed; other files in it stay.
Everything is put in place only when the whole archive has arrived: an archive that is broken or cut
off, contains devices, FIFOs or names that lead out of the folder, goes to a place where the user
may not write, or spans two disks, changes nothing. The files belong to the workspace's user.
"""
    + _SHARED
    + _PATHS
    + "| 400 | `bad-archive` | it is no whole tar, or contains something that is not accepted |\n"
    + "| 409 | `file-exists` | a file would replace a folder, or the reverse |\n"
    + "| 409 | `file-other-disk` | a target folder is on another disk, or a volume |\n"
    + "| 409 | `file-in-use` | another program has locked the folder |\n"
    + "| 413 | `body-too-large` | it is larger than the installation accepts |\n"
    + _DISK
)
PORTS_DESCRIPTION = (
    "TCP ports on which a process listens, and the process that listens.\n"
) + _SHARED
PORT_LINK_DESCRIPTION = """\
Makes a signed link to one port of one workspace, valid for some minutes and not stored. A browser
that opens it gets a cookie for the preview's own address, and is redirected to `path` without the
token. Anyone who has the link can use it. Nothing needs to listen on the port yet.

| Status | `code` | When |
|---|---|---|
| 404 | `workspace-not-found` | the owner has no such workspace |
| 409 | `workspace-not-ready` | the workspace is not running; `reason` says why |
| 503 | `previews-off`, `gateway-token-unset` | the installation has no preview gateway |
"""
