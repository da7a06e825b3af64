"""Answers whose content comes out of a workspace while it is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import http_date

from workspaces.files.call import FileCall
from workspaces.files.refusals import cut_off
from workspaces.files.services import hash_of, moment

FILE_TYPE = "application/octet-stream"
ARCHIVE_TYPE = "application/x-tar"


class Content:
    """The content of an answer; closes the call when the answer is over, however it ends."""

    def __init__(self, call: FileCall, length: int | None = None) -> None:
        self._call = call
        self._pieces = call.content(length)

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        """Give the call up."""
        self._call.close()


def file_answer(call: FileCall, *, head_only: bool) -> HttpResponseBase:
    """Return the answer to a read: 304, 206 or 200, without content for ``HEAD``."""
    with contextlib.ExitStack() as ending:
        ending.callback(call.close)
        told = call.answer()
        tag = f'"{hash_of(told)}"'
        headers = {"ETag": tag, "Accept-Ranges": "bytes", "Cache-Control": "no-cache"}
        if told.get("notModified"):
            return HttpResponse(status=304, headers=headers)
        status = 206 if told.get("partial") else 200
        headers |= _content_headers(told, partial=status == 206)
        if head_only:
            return HttpResponse(status=status, headers=headers)
        ending.pop_all()
        length = int(headers["Content-Length"])
        return StreamingHttpResponse(Content(call, length), status=status, headers=headers)


def _content_headers(told: Mapping[str, Any], *, partial: bool) -> dict[str, str]:
    try:
        start, end, size = int(told["from"]), int(told["to"]), int(told["size"])
        modified = max(0.0, moment(told["modifiedNs"]).timestamp())
    except (KeyError, TypeError, ValueError, OverflowError):
        raise cut_off() from None
    if not 0 <= start <= end <= size:
        raise cut_off()
    headers = {
        "Content-Type": FILE_TYPE,
        "Content-Length": str(end - start),
        # Somebody else's file is never a page of ours.
        "Content-Disposition": "attachment",
        "Last-Modified": http_date(modified),
    }
    if partial:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return headers


def archive_answer(call: FileCall) -> StreamingHttpResponse:
    """Return the answer with a tar."""
    with contextlib.ExitStack() as ending:
        ending.callback(call.close)
        call.answer()
        ending.pop_all()
    headers = {"Content-Type": ARCHIVE_TYPE, "Content-Disposition": "attachment"}
    return StreamingHttpResponse(Content(call), headers=headers)
