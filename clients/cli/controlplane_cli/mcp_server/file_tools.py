"""The tools for files of workspaces."""

from __future__ import annotations

import base64
import binascii
from contextlib import aclosing
from typing import Annotated

from pydantic import Field

from controlplane_cli.mcp_server.bounded import DEFAULT_BYTES, text_or_base64, whole_characters
from controlplane_cli.mcp_server.owners_tools import MaxBytes, OwnersTools, Told, WorkspaceName
from controlplane_client import Problem

Offset = Annotated[
    int, Field(ge=0, description="Byte to begin at: 0, or the next_offset of the answer before.")
]


class FileTools(OwnersTools):
    """Read, write, list."""

    async def read_file(
        self,
        workspace: WorkspaceName,
        path: Annotated[str, Field(description="Absolute, or from where commands begin.")],
        offset: Offset = 0,
        max_bytes: MaxBytes = DEFAULT_BYTES,
    ) -> Told:
        """Read a file, or a part of it. What is no text comes as content_base64.

        Go on with offset=next_offset where there is one; size is told where it is known.
        """
        there = await self.workspace(workspace)
        info = await there.files.stat(path)
        size = info.size if info.type == "file" else None
        content = b""
        if size is None or offset < size:
            try:
                async with aclosing(
                    there.files.stream(path, start=offset, end=offset + max_bytes)
                ) as stream:
                    content = b"".join([each async for each in stream])
            except Problem as problem:
                # What a link leads to may end there: how long it is, is not known before.
                if problem.code != "range-not-satisfiable" or size is not None or not offset:
                    raise
        end = offset + len(content)
        if size is None:
            more = len(content) == max_bytes
            if not more and (content or not offset):
                size = end
        else:
            more = end < size
        if more:
            content = whole_characters(content)
            end = offset + len(content)
        return {
            **text_or_base64(content),
            **({} if size is None else {"size": size}),
            **({"next_offset": end} if more else {}),
        }

    async def write_file(
        self,
        workspace: WorkspaceName,
        path: Annotated[str, Field(description="Absolute, or from where commands begin.")],
        content: Annotated[str | None, Field(description="The whole new content.")] = None,
        content_base64: Annotated[
            str | None, Field(description="Instead of content, for what is no text.")
        ] = None,
        only_new: Annotated[bool, Field(description="Fail where there is one already.")] = False,
        executable: Annotated[bool, Field(description="Make it a program.")] = False,
    ) -> Told:
        """Store a file, whole or not at all; one that is there is replaced, folders are made."""
        if (content is None) == (content_base64 is None):
            raise ValueError("give either content or content_base64")
        try:
            data = (
                base64.b64decode(content_base64, validate=True)
                if content_base64 is not None
                else (content or "").encode()
            )
        except binascii.Error as error:
            raise ValueError(f"content_base64 is no base64: {error}") from error
        there = await self.workspace(workspace)
        mode = 0o755 if executable else None
        written = await there.files.write(path, data, mode=mode, only_new=only_new)
        return {"size": written.size, "sha256": written.sha256, "created": written.created}

    async def list_files(
        self,
        workspace: WorkspaceName,
        path: Annotated[str, Field(description="A folder.")] = ".",
        cursor: Annotated[
            str | None, Field(description="The next_cursor of the answer before.")
        ] = None,
    ) -> Told:
        """List what is in a folder, 200 names at a time; go on with cursor=next_cursor."""
        there = await self.workspace(workspace)
        found, following = await there.files.page(path, cursor=cursor, limit=200)
        entries = [
            {
                "name": each.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
                "type": each.type,
                "size": each.size,
            }
            for each in found
        ]
        return {"entries": entries, **({"next_cursor": following} if following else {})}
