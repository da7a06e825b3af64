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


IF_MATCH = _header("If-Match", "Only if the file has one of these hashes, or is there (`*`).")
IF_NONE_MATCH = _header("If-None-Match", "Only if it has none of these, or is not there (`*`).")
RANGE = _header("Range", "One range, like `bytes=0-1023` or `bytes=-500`.")
IF_RANGE = _header("If-Range", "The range only if the file has this hash, otherwise all of it.")
READ_HEADERS = [
    IF_MATCH,
    IF_NONE_MATCH,
    RANGE,
    IF_RANGE,
    _header("ETag", "The SHA-256 of the whole file, in quotes.", 200, 206, 304),
    _header("Accept-Ranges", "`bytes`.", 200, 206),
    _header("Content-Range", "Which bytes of how many.", 206),
]
WRITE_HEADERS = [IF_MATCH, IF_NONE_MATCH, _header("ETag", "The SHA-256, in quotes.", 200, 201)]
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
| 409 | `workspace-not-ready` | it does not run; `reason` says why |
| 502 | `workspace-unreachable` | its agent does not answer, or ended on the way |
| 503 | `access-not-recorded` | its record has no room; nothing is done unrecorded |
| 503 | `too-many-file-calls` | too many calls of this workspace wait; see `Retry-After` |
"""
_PATHS = """\
| 400 | `file-name-too-long`, `file-link-loop` | the path cannot be one |
| 403 | `file-permission-denied` | the workspace's user may not |
| 404 | `file-not-found` | there is nothing |
"""
_NO_FILE = "| 409 | `not-a-file` | it is a folder, FIFO, socket or device |\n"
_CONDITION = "| 412 | `precondition-failed` | the conditions do not hold |\n"
_DISK = "| 507 | `workspace-disk-full` | the workspace's disk is full; nothing was changed |\n"

READ_DESCRIPTION = (
    """\
Sends a file, or one range of it, as the workspace's user sees it. Links are followed. `ETag` is the
SHA-256 of the whole file, so a changed file is never mistaken for the one before; content that
changes while it is sent ends early. The read is an event of the workspace's boot run.
"""
    + _SHARED
    + _PATHS
    + _NO_FILE
    + _CONDITION
    + "| 416 | `range-not-satisfiable` | the file is shorter; `Content-Range` tells its size |\n"
)
WRITE_DESCRIPTION = (
    """\
Stores the body, of whatever type, as a file. Programs see the old content or the new one, never a
part; after the answer it is on the disk. Missing folders are made, a link is followed, and a file
that was there keeps its permissions. Of several writes with the same `If-Match`, or with
`If-None-Match: *`, one succeeds. An upload that breaks off changes nothing.
"""
    + _SHARED
    + _PATHS
    + _NO_FILE
    + "| 409 | `file-in-use` | somebody holds the folder locked |\n"
    + _CONDITION
    + "| 413 | `body-too-large` | it is larger than the installation takes |\n"
    + _DISK
)
REMOVE_DESCRIPTION = (
    """\
Removes a file, a link (not what it leads to), an empty folder, or with `recursive` a folder with
all that is in it. A folder has no hash, so only `If-Match: *` holds for one.
"""
    + _SHARED
    + _PATHS
    + "| 409 | `directory-not-empty` | say `recursive=true` |\n"
    + "| 409 | `not-a-directory` | the path ends in a slash, and what is there is no folder |\n"
    + _CONDITION
)
STAT_DESCRIPTION = "What lies at a path; of a link the link itself.\n" + _SHARED + _PATHS
LIST_DESCRIPTION = (
    """\
What is in a folder, in the order of the names' bytes, with their `stat`. Of a name that is no UTF-8
there is `nameBase64`.
"""
    + _SHARED
    + _PATHS
    + "| 409 | `not-a-directory` | it is no folder |\n"
)
MOVE_DESCRIPTION = (
    "Gives a file, link or folder another name on the same disk.\n"
    + _SHARED
    + _PATHS
    + "| 400 | `bad-path` | a folder cannot be moved into itself |\n"
    + "| 409 | `file-exists` | the name is taken, and `overwrite` was not said |\n"
    + "| 409 | `file-other-disk` | the places are on different disks |\n"
)
MAKE_DESCRIPTION = (
    "Makes a folder.\n"
    + _SHARED
    + _PATHS
    + "| 409 | `file-exists` | something of that name is there |\n"
    + _DISK
)
PACK_DESCRIPTION = (
    """\
Sends a folder, or a file, as a tar, with links as links and names as they are. Sockets and devices
are left out. An archive that cannot be completed ends early, without the chunk that ends a body.
"""
    + _SHARED
    + _PATHS
)
UNPACK_DESCRIPTION = (
    """\
Unpacks a tar (not compressed) into a folder, which is made if need be; what else is in it stays.
Everything is put in place only when all of it has come: one that is broken, or holds devices or
names that lead out of the folder, changes nothing, and neither does one that goes to a place where
the user may not write, or to two disks. Files are the workspace's user's.
"""
    + _SHARED
    + _PATHS
    + "| 400 | `bad-archive` | it is no tar, or holds what is not taken |\n"
    + "| 409 | `file-exists` | a file is in the place of a folder, or the reverse |\n"
    + "| 409 | `file-other-disk` | a folder that it goes to is on another disk, or a volume |\n"
    + "| 409 | `file-in-use` | somebody holds the folder locked |\n"
    + "| 413 | `body-too-large` | it is larger than the installation takes |\n"
    + _DISK
)
PORTS_DESCRIPTION = "TCP ports on which something listens, and whose process it is.\n" + _SHARED
PORT_LINK_DESCRIPTION = """\
Makes a signed link to one port of one workspace, good for some minutes and stored nowhere. A
browser that opens it gets a cookie for the preview's own address, and is sent on to `path` without
the token. Whoever has the link can use it. Nothing needs to listen on the port yet.

| Status | `code` | When |
|---|---|---|
| 404 | `workspace-not-found` | the owner has no such workspace |
| 409 | `workspace-not-ready` | it does not run; `reason` says why |
| 503 | `previews-off`, `gateway-token-unset` | the installation has no preview gateway |
"""
