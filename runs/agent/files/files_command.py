"""`agent files`: one call to the workspace's files, as the workspace's user."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any, Callable, Dict, NoReturn, Optional

from ..config import Config, load
from ..credentials.child_environment import account_of
from .access import AccessLog
from .entries import bytes_of
from .files_wire import FAILED, CallerGone, Refusal, Wire, refusal_of

EXIT_CUT_OFF = 1

Action = Callable[[Wire, AccessLog, Dict[str, Any], bytes], None]


def serve(config_path: str, state_directory: str) -> int:
    """Do what the frames on stdin ask for; 1 when the caller went away before its end."""
    wire = Wire()
    # Both are to end what was begun, and a handler of Python's own would not.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    # With the container's end it comes right behind TERM, and would cut short what TERM begins.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        spec = wire.spec()
        config = load(config_path)
        action = _action(str(spec.get("action")))
        log = AccessLog(state_directory, _caller(spec))
        os.umask(0o022)
        account_of(config).assume()
        # A folder that is held open cannot be unmounted or removed.
        os.chdir("/")
        if "to" in spec:
            spec["to"] = _located(spec["to"], config)
        action(wire, log, spec, _located(spec.get("path"), config))
    except CallerGone:
        return EXIT_CUT_OFF
    except (Refusal, OSError, RecursionError) as error:
        refused = refusal_of(error)
        told = {"code": refused.code, "message": str(refused), **refused.members}
        try:
            wire.send_json(FAILED, told)
        except CallerGone:
            return EXIT_CUT_OFF
    return 0


def _end(number: int, frame: Optional[FrameType]) -> NoReturn:
    raise CallerGone


def _caller(spec: Dict[str, Any]) -> Dict[str, Any]:
    return {name: str(spec[name]) for name in ("by", "request") if spec.get(name)}


def _located(path: object, config: Config) -> bytes:
    """The path in bytes; relative ones begin where sessions and runs do."""
    return os.path.join(os.fsencode(config.working_directory), bytes_of(path))


def _action(name: str) -> Action:
    if name in ("pack", "unpack"):
        from . import archives

        return archives.pack if name == "pack" else archives.unpack
    if name in ("read", "stat", "list"):
        from . import read_files as reading

        return {"read": reading.read, "stat": reading.look, "list": reading.list_folder}[name]
    from . import writing

    actions: Dict[str, Action] = {
        "write": writing.write,
        "remove": writing.remove,
        "move": writing.move,
        "mkdir": writing.make_folder,
    }
    if name not in actions:
        raise Refusal("file-failed", "The workspace's agent does not know this call.")
    return actions[name]
