"""An exec of Kubernetes with nothing of ours: a socket, a handshake, and frames as they come.

What an exec of the product is held against. It reads as a program in C would: it looks at the heads
of frames and leaves their content where it is.
"""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Sequence

from workspaces.runtimes.kubernetes.cluster_access import Access
from workspaces.runtimes.kubernetes.exec_wire import OUTPUT, exec_path

READ_BYTES = 256 * 1024
END = b"\r\n\r\n"


def output_bytes(access: Access, namespace: str, pod: str, command: Sequence[str]) -> int:
    """Execute ``command`` in a Pod's workspace until its end; how many bytes it has written."""
    server = access.server()
    context, name = access.tls()
    path = server.path + exec_path(namespace, pod, "workspace", command)
    headers = {
        "Host": f"{server.host}:{server.port}",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Protocol": "v4.channel.k8s.io",
        **access.headers(),
    }
    asked = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    with (
        socket.create_connection((server.host, server.port)) as plain,
        context.wrap_socket(plain, server_hostname=name or server.host) as connection,
    ):
        plain.close()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(f"GET {path} HTTP/1.1\r\n{asked}\r\n".encode())
        answer = b""
        while END not in answer:
            if not (piece := connection.recv(READ_BYTES)):
                raise RuntimeError("the API server hung up")
            answer += piece
        head, _, rest = answer.partition(END)
        if b" 101 " not in head.partition(b"\r\n")[0]:
            raise RuntimeError(f"the exec was refused: {answer[:300]!r}")
        return _counted(connection, rest)


def _counted(connection: socket.socket, rest: bytes) -> int:
    """Return how many bytes of output there are in the frames until the closing one."""
    total, skip, buffer = 0, 0, rest
    while True:
        at = min(skip, len(buffer))
        skip -= at
        while not skip and len(buffer) - at >= 2:
            size, start = buffer[at + 1] & 127, at + 2
            wide = {126: 2, 127: 8}.get(size, 0)
            # The first byte of the content says of which channel it is.
            if len(buffer) < start + wide + 1:
                break
            if wide:
                size, start = int.from_bytes(buffer[start : start + wide], "big"), start + wide
            if buffer[at] & 15 == 8:
                return total
            if size and buffer[start] == OUTPUT:
                total += size - 1
            at = min(start + size, len(buffer))
            skip = start + size - at
        piece = connection.recv(READ_BYTES)
        if not piece:
            return total
        buffer = buffer[at:] + piece
