"""`agent session`: an interactive run whose client talks through our stdin and stdout.

The first frame is the spec. When the record is durable the client is told, and opens channels as it
likes: programs, and connections to servers in the workspace. All are served by one loop.
"""

from __future__ import annotations

import json
import os
from typing import Optional

from ..config import ConfigError, load
from ..credentials.child_environment import account_of
from ..execution.exec_command import EXIT_NOT_RECORDED, EXIT_REFUSED, open_spool, runs_root
from ..execution.execution import Execution
from ..execution.runspec import parse_interactive
from ..record.spool import SpoolExists, SpoolFailed, SpoolWriter
from .channel import ChannelError, FrameReader, FrameWriter, FromClient, ToClient
from .gateway_connection import Connection


def converse(config_path: str, state_directory: str) -> int:
    """Serve one session from its spec to its end; returns the exit code of the process."""
    reader, writer = FrameReader(_taken(0, os.O_RDONLY)), FrameWriter(_taken(1, os.O_WRONLY))
    try:
        content = _receive_spec(reader)
        config = load(config_path)
        spec = parse_interactive(content)
        account_of(config)
    except (ConfigError, ChannelError) as error:
        return _refuse(writer, str(error), EXIT_REFUSED)
    spool: Optional[SpoolWriter] = None
    try:
        if spec.record is not None:
            spool = open_spool(spec, spec.record, state_directory)
    except SpoolExists:
        return _refuse(writer, "the run exists already", EXIT_NOT_RECORDED)
    except (SpoolFailed, OSError) as error:
        return _refuse(writer, f"the run cannot be recorded: {error}", EXIT_NOT_RECORDED)
    execution = Execution(spec, config, spool, runs_root(state_directory))
    connection = Connection(execution, reader, writer)
    execution.client = connection
    execution.begin()
    connection.greet({"spoolId": execution.recording.spool_id})
    # What the client asks for meanwhile waits until the baseline is there.
    execution.observe()
    connection.begin()
    execution.finish()
    connection.say_goodbye()
    return 0


def _taken(fd: int, flags: int) -> int:
    """The stream under a number that no program inherits; the old one leads nowhere."""
    taken = os.dup(fd)
    null = os.open(os.devnull, flags)
    os.dup2(null, fd)
    os.close(null)
    return taken


def _receive_spec(reader: FrameReader) -> bytes:
    while True:
        frame = reader.take()
        if frame is not None:
            if frame.type != FromClient.SPEC or frame.channel != 0:
                raise ChannelError("the first frame must be the spec")
            return frame.payload
        if reader.ended:
            raise ChannelError("the stream ended before the spec")
        reader.read()


def _refuse(writer: FrameWriter, message: str, code: int) -> int:
    writer.send(ToClient.ERROR, 0, json.dumps({"message": message}).encode())
    writer.flush()
    return code
