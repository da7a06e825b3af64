"""Answers whose content comes out of a workspace while it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import http_date

from workspaces.files.call import FileCall
from workspaces.files.services import moment

FILE_TYPE = "application/octet-stream"
ARCHIVE_TYPE = "application/x-tar"


class Content:
    """The content of an answer; closes the call when the answer is over, however it ends."""

    def __init__(self, call: FileCall) -> None:
        self._call = call
        self._pieces = call.content()

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        """Give the call up."""
        self._call.close()


def file_answer(call: FileCall, *, head_only: bool) -> HttpResponseBase:
    """Return the answer to a read: 304, 206 or 200, without content for ``HEAD``."""
    told = _answer(call)
    tag = f'"{told["sha256"]}"'
    headers = {"ETag": tag, "Accept-Ranges": "bytes", "Cache-Control": "no-cache"}
    if told.get("notModified"):
        call.close()
        return HttpResponse(status=304, headers=headers)
    start, end, size = int(told["from"]), int(told["to"]), int(told["size"])
    headers |= {
        "Content-Type": FILE_TYPE,
        "Content-Length": str(end - start),
        # Somebody else's file is never a page of ours.
        "Content-Disposition": "attachment",
        "Last-Modified": http_date(max(0.0, moment(told["modifiedNs"]).timestamp())),
    }
    status = 200
    if told.get("partial"):
        status = 206
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    if head_only:
        call.close()
        return HttpResponse(status=status, headers=headers)
    return StreamingHttpResponse(Content(call), status=status, headers=headers)


def archive_answer(call: FileCall) -> StreamingHttpResponse:
    """Return the answer with a tar."""
    _answer(call)
    headers = {"Content-Type": ARCHIVE_TYPE, "Content-Disposition": "attachment"}
    return StreamingHttpResponse(Content(call), headers=headers)


def _answer(call: FileCall) -> dict[str, Any]:
    try:
        return call.answer()
    except BaseException:
        call.close()
        raise
