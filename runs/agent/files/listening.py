"""`agent ports`: what listens on TCP ports in this workspace, and whose process that is."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, Dict, List, Set, Tuple

from ..config import load
from ..credentials.child_environment import account_of
from ..observe.helper import HelperFailed, Send, ask
from ..observe.network import listening_sockets

_SOCKET = re.compile(r"socket:\[(\d+)\]\Z")
_MOST_PORTS = 1000
_RESOLVER = "127.0.0.11"
"""Where the engine answers for the names of its networks; no program of the workspace does."""
_NAME_BYTES = 256
_USER_SECONDS = 5.0

Owners = Dict[str, Tuple[int, str]]


def show(config_path: str) -> int:
    """Print them as JSON, by port and address."""
    found = [each for each in listening_sockets() if each[1] != _RESOLVER][:_MOST_PORTS]
    inodes = {inode for _, _, inode in found}
    owners = _owners(inodes)
    owners.update(_owners_as_user(config_path, inodes - set(owners)))
    ports: List[Dict[str, Any]] = []
    for port, address, inode in found:
        told: Dict[str, Any] = {"port": port, "address": address}
        if inode in owners:
            told["pid"], told["process"] = owners[inode]
        ports.append(told)
    json.dump({"ports": ports}, sys.stdout)
    return 0


def _owners_as_user(config_path: str, inodes: Set[str]) -> Owners:
    """The same as the workspace's user sees it: what its processes hold is not shown to root."""
    if not inodes:
        return {}

    def work(send: Send) -> None:
        send({"owners": _owners(inodes)}, b"")

    try:
        messages = ask(account_of(load(config_path)), _USER_SECONDS, work)
    except HelperFailed:
        return {}
    return {inode: (pid, name) for inode, (pid, name) in messages[0][0]["owners"].items()}


def _owners(inodes: Set[str]) -> Owners:
    """The process with the lowest number that holds each socket: a server before its workers."""
    found: Owners = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        if len(found) == len(inodes):
            break
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue  # it has ended
        for descriptor in descriptors:
            try:
                link = _SOCKET.match(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
            except OSError:
                continue
            if link is not None and link[1] in inodes and link[1] not in found:
                found[link[1]] = (pid, _name(pid))
    return found


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read(_NAME_BYTES).decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return ""
