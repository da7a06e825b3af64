"""Forty calls of E2B's Python SDK, as its users write them; run with a release of the SDK.

Prints one JSON object: what each call gave. Nothing of the service is imported.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from typing import Any

import e2b
from e2b import CommandExitException, NotFoundException, Sandbox, TimeoutException

TOLD: dict[str, Any] = {}
SECONDS = 250.0
"""Within which all happens that has to."""


def told(name: str, value: Any) -> None:
    """Note what a call gave."""
    assert name not in TOLD, name
    TOLD[name] = value


def fails(call: Any, *args: Any, **options: Any) -> Any:
    """Return the exception that a call raises."""
    try:
        call(*args, **options)
    except Exception as error:
        return error
    raise AssertionError(f"{call} {args} did not fail")


def first_page(**options: Any) -> list[Any]:
    """Return the first page of a list of sandboxes."""
    return list(Sandbox.list(**options).next_items())


def last_left(sandbox: Any) -> list[int]:
    """Return what still runs, once that is nothing; what was given up ends a moment later."""
    deadline = time.monotonic() + SECONDS
    while (left := [each.pid for each in sandbox.commands.list()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def commands(sandbox: Any) -> None:
    """Call what executes."""
    result = sandbox.commands.run("echo out; echo err >&2")
    told("run", [result.exit_code, result.stdout, result.stderr])
    error = fails(sandbox.commands.run, "echo no; exit 7")
    told("run fails", [type(error) is CommandExitException, error.exit_code, error.stdout])
    pieces: list[str] = []
    sandbox.commands.run("for n in 1 2 3; do echo $n; done", on_stdout=pieces.append)
    told("run with callback", "".join(pieces))
    told("envs", sandbox.commands.run("echo $A-$B", envs={"B": "2"}).stdout)
    told("cwd", sandbox.commands.run("pwd", cwd="/tmp").stdout)
    told("user", sandbox.commands.run("whoami", user="user").stdout != "")
    told("other user", "runs as its user" in str(fails(sandbox.commands.run, "id", user="root")))
    error = fails(sandbox.commands.run, "sleep 30", timeout=2)
    told("timeout", isinstance(error, TimeoutException) or repr(error))
    told("utf-8", sandbox.commands.run("printf 'grüße 日本'").stdout)

    background = sandbox.commands.run("echo up; exec sleep 300", background=True)
    listed = [each for each in sandbox.commands.list() if each.pid == background.pid]
    told("list", [listed[0].cmd, listed[0].args[-1]])
    told("kill", background.kill())
    told("wait for the killed", fails(background.wait).exit_code)
    told("kill again", sandbox.commands.kill(background.pid))
    told("list after", last_left(sandbox))

    reading = sandbox.commands.run("read line; echo $line; cat", background=True, stdin=True)
    sandbox.commands.send_stdin(reading.pid, "one\n")
    sandbox.commands.send_stdin(reading.pid, "two\n")
    again = sandbox.commands.connect(reading.pid)
    told("connect", again.pid == reading.pid)
    sandbox.commands.send_stdin(reading.pid, "three\n")
    if hasattr(sandbox.commands, "close_stdin"):
        sandbox.commands.close_stdin(reading.pid)
        told("stdin", reading.wait().stdout)
    else:
        output = ""
        for out, _, _ in reading:
            output += out or ""
            if "three" in output:
                break
        told("stdin", output)
        reading.kill()
    error = fails(sandbox.commands.connect, 12345)
    told("connect to nothing", isinstance(error, NotFoundException))


def terminals(sandbox: Any) -> None:
    """Call what has to do with terminals."""
    from e2b.sandbox.commands.command_handle import PtySize

    pty = sandbox.pty.create(PtySize(rows=30, cols=100), cwd="/tmp", envs={"PS1": "$ "})
    sandbox.pty.send_stdin(pty.pid, b"stty size; pwd\n")
    told("pty resize", sandbox.pty.resize(pty.pid, PtySize(rows=40, cols=120)))
    sandbox.pty.send_stdin(pty.pid, b"stty size; exit 0\n")
    shown: list[bytes] = []
    told("pty end", pty.wait(on_pty=shown.append).exit_code)
    output = b"".join(shown)
    told("pty", [b"40 120" in output, b"/tmp" in output])


def files(sandbox: Any) -> None:
    """Call what reads and changes files."""
    made = sandbox.files.write("notes/a b.txt", "one\n")
    told("write", [made.name, made.path])
    told("read", sandbox.files.read("notes/a b.txt"))
    told("write bytes", sandbox.files.write("raw", bytes(range(256))).name)
    told("read bytes", bytes(sandbox.files.read("raw", format="bytes")) == bytes(range(256)))
    big = b"0123456789abcdef" * 200_000
    sandbox.files.write("big", big)
    told("read stream", b"".join(sandbox.files.read("big", format="stream")) == big)
    many = [{"path": "many/1", "data": "1"}, {"path": "many/2", "data": b"2"}]
    told("write many", [each.path for each in sandbox.files.write_files(many)])
    told("list files", [(e.name, e.type.value, e.size) for e in sandbox.files.list("many")])
    deep = sandbox.files.list("/workspace/repo", depth=2)
    told("list deep", sorted(each.path for each in deep))
    told("exists", [sandbox.files.exists("many/1"), sandbox.files.exists("nothing")])
    info = sandbox.files.get_info("many/1")
    told("info", [info.name, info.type.value, info.size, info.permissions, info.owner])
    told("make", [sandbox.files.make_dir("deep/er/one"), sandbox.files.make_dir("deep/er/one")])
    told("rename", sandbox.files.rename("many/1", "moved/one").path)
    sandbox.files.remove("moved")
    told("removed", sandbox.files.exists("moved"))
    told("read nothing", isinstance(fails(sandbox.files.read, "nothing"), NotFoundException))
    error = fails(sandbox.files.list, "nothing")
    told("list nothing", isinstance(error, NotFoundException))


def watches(sandbox: Any) -> None:
    """Watch a folder."""
    handle = sandbox.files.watch_dir("deep", recursive=True)
    sandbox.files.write("deep/er/new", "x")
    seen: set[tuple[str, str]] = set()
    deadline = time.monotonic() + SECONDS
    while ("er/new", "write") not in seen and time.monotonic() < deadline:
        seen |= {(each.name, each.type.value) for each in handle.get_new_events()}
        time.sleep(0.1)
    told("watch", seen == {("er/new", "create"), ("er/new", "write")})
    handle.stop()
    told("watch nothing", isinstance(fails(sandbox.files.watch_dir, "nothing"), NotFoundException))


def addresses(sandbox: Any) -> None:
    """Use signed addresses without the SDK."""
    sandbox.files.write("shown.txt", "for everybody")
    address = sandbox.download_url("shown.txt", use_signature_expiration=60)
    with urllib.request.urlopen(address) as answer:
        told("download", answer.read().decode())
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nup\r\n--b--\r\n'
    )
    request = urllib.request.Request(
        sandbox.upload_url("sent.txt", use_signature_expiration=60),
        data=form,
        headers={"content-type": "multipart/form-data; boundary=b"},
    )
    with urllib.request.urlopen(request) as answer:
        told("upload", json.load(answer)[0]["name"])
    told("uploaded", sandbox.files.read("sent.txt"))


def life(sandbox: Any) -> None:
    """Call the control plane."""
    told("running", sandbox.is_running())
    info = sandbox.get_info()
    told("get_info", [info.sandbox_id == sandbox.sandbox_id, info.template_id, info.metadata])
    before = info.end_at
    sandbox.set_timeout(1200)
    told("set_timeout", sandbox.get_info().end_at > before)
    metrics = sandbox.get_metrics()
    told("metrics", [len(metrics), metrics[0].cpu_count > 0])
    query = e2b.SandboxQuery(metadata={"suite": sys.argv[1]})
    told("list sandboxes", [each.sandbox_id for each in first_page(query=query)])
    other = e2b.SandboxQuery(metadata={"suite": "another"})
    told("list others", first_page(query=other))
    same = Sandbox.connect(sandbox.sandbox_id, timeout=600)
    told("connected", same.commands.run("echo $A").stdout)
    told("unknown template", "no template" in str(fails(Sandbox.create, "nothing-like-it")))
    told("killed", sandbox.kill())
    told("killed again", sandbox.kill())
    told("runs no more", sandbox.is_running())
    told("nothing runs", "not found" in str(fails(same.commands.run, "echo")))


def main() -> None:
    """Make a sandbox and call everything."""
    sandbox = Sandbox.create(timeout=900, metadata={"suite": sys.argv[1]}, envs={"A": "1"})
    told("sandbox", sandbox.sandbox_id)
    try:
        commands(sandbox)
        terminals(sandbox)
        files(sandbox)
        watches(sandbox)
        addresses(sandbox)
        life(sandbox)
    finally:
        if "killed" not in TOLD:
            sandbox.kill()
        print(json.dumps(TOLD))


main()
