"""A host beyond this machine, made of a network namespace, and what a workspace reaches of all."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

from docker.models.containers import Container

PORT = 8099
METADATA = "169.254.169.254"
PRIVATE = "172.31.250.9"
PUBLIC = "198.51.100.2"
_SERVE = f"""
import socket, threading
def greet(listener):
    while True:
        connection, _ = listener.accept()
        connection.sendall(b"welcome")
        connection.close()
def echo(datagrams):
    while True:
        said, sender = datagrams.recvfrom(100)
        datagrams.sendto(b"welcome", sender)
tcp = socket.create_server(("::", {PORT}), family=socket.AF_INET6, dualstack_ipv6=True)
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
udp.bind(("::", {PORT}))
print("ready", flush=True)
threading.Thread(target=echo, args=(udp,), daemon=True).start()
greet(tcp)
"""
_REACH = """
import concurrent.futures, json, socket, sys
def reach(place):
    kind, host, port = place
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM) as s:
            s.settimeout(8)
            s.connect((host, port))
            if kind == "udp":
                s.send(b"hello")
            return s.recv(100).decode() or "closed"
    except OSError as error:
        return f"failed: {error}"
places = json.loads(sys.argv[1])
with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
    print(json.dumps(list(pool.map(reach, places))))
"""

Place = tuple[str, str, int]
"""``tcp`` or ``udp``, address, port."""


def ip(*words: str) -> str:
    """Run ``ip`` and return what it says."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@contextmanager
def greeting_host(*prefix: str) -> Iterator[None]:
    """Serve on every address of this machine, or of a namespace that ``prefix`` enters."""
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen([*prefix, "python3", "-c", _SERVE], stdout=subprocess.PIPE, text=True)
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield


@contextmanager
def outside_world() -> Iterator[None]:
    """Another machine: it has a public, a private and a metadata address, and greets on each."""
    name = f"svc{os.getpid()}"
    with ExitStack() as stack:
        # Its addresses are routed by this machine, which all tests share.
        lock = stack.enter_context((Path(tempfile.gettempdir()) / "svc-outside-world").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Of a run that was killed: nobody else can be in it, as the lock is ours.
        for left in ip("netns", "list").split():
            if left.startswith("svc") and left[3:].isdigit():
                ip("netns", "del", left)
        ip("netns", "add", name)
        stack.callback(ip, "netns", "del", name)
        ip("link", "add", f"{name}h", "type", "veth", "peer", "name", "eth0", "netns", name)
        # Removed here: the end of a namespace takes its devices and their routes away only later.
        stack.callback(ip, "link", "del", f"{name}h")
        ip("address", "add", "198.51.100.1/24", "dev", f"{name}h")
        ip("link", "set", f"{name}h", "up")
        for address in (f"{PUBLIC}/24", f"{PRIVATE}/32", f"{METADATA}/32"):
            ip("-n", name, "address", "add", address, "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "route", "add", "default", "via", "198.51.100.1")
        for address in (PRIVATE, METADATA):
            ip("route", "add", f"{address}/32", "via", PUBLIC)
        stack.enter_context(greeting_host("ip", "netns", "exec", name))
        yield


def reached(container: Container, places: Mapping[str, Place]) -> set[str]:
    """The names of the places that answer somebody inside the container."""
    code, output = container.exec_run(["python3", "-c", _REACH, json.dumps(list(places.values()))])
    assert code == 0, output
    answers = json.loads(cast("bytes", output))
    return {name for name, said in zip(places, answers, strict=True) if said == "welcome"}
