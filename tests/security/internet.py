"""A small internet in a network namespace: names, hosts of several protocols, and a capture.

It notes every packet that reaches it, and whose name is asked for: that, not what a client inside
believes, says what has left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.security.surroundings import METADATA, PRIVATE, PUBLIC, ip, outside_world

OTHER = "198.51.100.3"
MACHINE = "198.51.100.1"
SECOND = "198.51.100.9"
"""Another address of the machine's interface, from which the kernel would not send."""
NAMES = {
    "allowed.test": PUBLIC,
    "files.wild.test": PUBLIC,
    "other.test": OTHER,
    "private.test": PRIVATE,
    "metadata.test": METADATA,
    "machine.test": MACHINE,
    "second.test": SECOND,
    "loopback.test": "127.0.0.1",
}
TLS_PORTS, HTTP_PORTS, OTHER_PORTS = (443, 853, 8443), (80, 8080), (22, 53, 9000)

_INTERNET = """
import json, socket, ssl, sys, threading
import dns.message, dns.rcode, dns.rrset, dns.flags
names, certificate, key, notes, with_tls, without, ours = json.loads(sys.argv[1])
said = []
def noted(**what):
    with lock:
        said.append(what)
        with open(notes, "a") as file:
            file.write(json.dumps(what) + "\\n")
lock = threading.Lock()
def authority():
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("0.0.0.0", 53))
    while True:
        query, sender = udp.recvfrom(4096)
        asked = dns.message.from_wire(query)
        name = asked.question[0].name.to_text(omit_final_dot=True).lower()
        noted(asked=name)
        reply = dns.message.make_response(asked)
        reply.flags |= dns.flags.AA
        if name in names:
            question = asked.question[0].name
            reply.answer.append(dns.rrset.from_text(question, 0, "IN", "A", names[name]))
        else:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        udp.sendto(reply.to_wire(), sender)
def serve(listener, port, tls):
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
    def one(client):
        try:
            client.settimeout(60)
            if context:
                client = context.wrap_socket(client, server_side=True)
            said = b""
            while b"\\n" not in said:
                data = client.recv(65536)
                if not data:
                    break
                said += data
            head = said.partition(b"\\n")[0].decode("latin-1").strip()
            noted(port=port, first=head[:200])
            body = b"welcome"
            if b" HTTP/1." in said:
                if b"POST" in said:
                    while b"the-end" not in said:
                        said += client.recv(65536)
                answer = b"HTTP/1.1 200 OK\\r\\nContent-Length: 7\\r\\n\\r\\nwelcome"
            elif said.startswith(b"SSH-"):
                answer = b"SSH-2.0-welcome\\r\\n"
            else:
                answer = b"welcome"
            client.sendall(answer)
            if b"bulk" in said:
                client.sendall(b"x" * (1 << 20))
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
        except OSError:
            pass
        finally:
            client.close()
    while True:
        client, _ = listener.accept()
        threading.Thread(target=one, args=(client,), daemon=True).start()
def capture():
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    raw.bind(("eth0", 0))
    while True:
        frame, where = raw.recvfrom(65536)
        if where[2] == socket.PACKET_OUTGOING:
            continue
        kind = int.from_bytes(frame[12:14], "big")
        if kind != 0x0800:
            if kind not in (0x0806, 0x86DD):
                noted(ethertype=kind)
            continue
        head = frame[14:]
        size = (head[0] & 15) * 4
        to = socket.inet_ntoa(head[16:20])
        if to not in ours or (head[9] == 1 and head[size] == 3):
            continue  # what the machine says by itself
        port = int.from_bytes(head[size + 2 : size + 4], "big") if head[9] in (6, 17) else 0
        noted(protocol=head[9], to=to, to_port=port)
def listening(port):
    return socket.create_server(("0.0.0.0", port), backlog=128)
for target, arguments in (
    [(authority, ()), (capture, ())]
    + [(serve, (listening(port), port, True)) for port in with_tls]
    + [(serve, (listening(port), port, False)) for port in without]
):
    threading.Thread(target=target, args=arguments, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass
class Internet:
    """What has reached it so far."""

    notes: Path

    def _all(self) -> list[dict[str, Any]]:
        if not self.notes.exists():
            return []
        return [json.loads(line) for line in self.notes.read_text().splitlines()]

    @property
    def asked(self) -> set[str]:
        """The names that somebody asked its authority for."""
        return {note["asked"] for note in self._all() if "asked" in note}

    @property
    def packets(self) -> set[tuple[int, str, int]]:
        """Protocol number, address and port of every packet that came to one of its addresses."""
        return {
            (note["protocol"], note["to"], note["to_port"])
            for note in self._all()
            if "protocol" in note
        }

    @property
    def first_lines(self) -> set[tuple[int, str]]:
        """Port and first line of what clients sent."""
        return {(note["port"], note["first"]) for note in self._all() if "first" in note}


@contextmanager
def internet(folder: Path) -> Iterator[Internet]:
    """Have one beyond this machine."""
    key, certificate, notes = folder / "key.pem", folder / "certificate.pem", folder / "notes"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=allowed.test", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    namespace = f"svc{os.getpid()}"
    with ExitStack() as stack:
        stack.enter_context(outside_world())
        ip("-n", namespace, "address", "add", f"{OTHER}/24", "dev", "eth0")
        ip("address", "add", f"{SECOND}/24", "dev", f"{namespace}h")
        without_tls = (*HTTP_PORTS, *OTHER_PORTS)
        places = (str(certificate), str(key), str(notes))
        theirs = (PUBLIC, OTHER, PRIVATE, METADATA)
        given = json.dumps([NAMES, *places, TLS_PORTS, without_tls, theirs])
        process = stack.enter_context(
            subprocess.Popen(
                ["ip", "netns", "exec", namespace, sys.executable, "-c", _INTERNET, given],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Internet(notes)
