"""nginx, configured as a page says."""

from __future__ import annotations

import contextlib
import getpass
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from deploy.services.private import find_program
from tests.docs.pages import read_page
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

_WHOLE = """\
daemon off;
user {user};  # who reads the folder of the test
worker_processes 1;
error_log stderr;
pid {folder}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{server}
}}
"""


def block(page: Path, language: str) -> str:
    """Return the one block of a page in this language."""
    (found,) = [each for each in read_page(page).blocks if each.language == language]
    return "\n".join(found.lines)


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Return a certificate for a name, which vouches for itself, and its key."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    made += ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key)]
    subprocess.run([*made, "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


@contextlib.contextmanager
def running_nginx(folder: Path, server: str, port: int, changes: dict[str, str]) -> Iterator[None]:
    """Run nginx with a page's server on ``port``; ``changes`` has what is named otherwise here."""
    for shown, real in (changes | {"listen 443 ssl": f"listen 127.0.0.1:{port} ssl"}).items():
        assert shown in server
        server = server.replace(shown, real)
    configuration = folder / "nginx.conf"
    configuration.write_text(_WHOLE.format(user=getpass.getuser(), folder=folder, server=server))
    program = find_program("nginx")
    assert program is not None
    command = [str(program), "-p", str(folder), "-c", str(configuration)]
    subprocess.run([*command, "-t"], check=True, capture_output=True)
    with (folder / "nginx.log").open("wb") as log:
        running = subprocess.Popen(command, stderr=log, start_new_session=True)

    def answers() -> bool:
        assert running.poll() is None, (folder / "nginx.log").read_text()
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    try:
        eventually(answers, what="the proxy answers")
        yield
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(LONG_WAIT)
