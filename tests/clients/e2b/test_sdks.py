"""Releases of E2B's SDKs from their indexes do the same forty calls, and all of it is recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane_client import Client
from e2bfacade.releases import TESTED
from tests.conftest import OWNER
from tests.stack.e2b_process import E2BProcess
from tests.stack.gateway_process import ApiProcess
from tests.stack.runs import GATEWAY_TOKEN
from tests.support.waiting import BUILD_WAIT

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1200)]

HERE = Path(__file__).parent
PYTHON = ("2.8.0", "2.28.0", "2.63.0")
JAVASCRIPT = ("2.8.4", "2.25.0", "2.51.0")
UNTESTED = {"python": "2.7.0", "js": "2.7.0"}
PREVIEWS = "localhost:4080"


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    """Run a program, which has to succeed, and return what it printed."""
    kept = {name: each for name, each in os.environ.items() if not name.startswith("PY")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def facade(
    api_process: ApiProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[E2BProcess]:
    """A facade for the owner of the tests."""
    log = tmp_path_factory.mktemp("facade") / "e2b.log"
    made = E2BProcess(
        log,
        api=api_process.url,
        SVC_E2B_OWNER=OWNER,
        WORKSPACE_SSH_GATEWAY_TOKEN=GATEWAY_TOKEN,
        SVC_PREVIEW_DOMAIN="localhost",
    )
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any package."""
    folder = tmp_path_factory.mktemp("python") / "venv"
    venv.create(folder)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all releases of the JavaScript SDK, as ``e2b-<release>``."""
    folder = tmp_path_factory.mktemp("javascript")
    releases = (*JAVASCRIPT, UNTESTED["js"])
    wanted = {f"e2b-{release}": f"npm:e2b@{release}" for release in releases}
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": wanted}))
    run("npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--silent", folder=folder)
    shutil.copy(HERE / "scripted.mjs", folder)
    return folder


def installed(release: str, folder: Path) -> Path:
    """Install a release of the Python SDK with what it needs; return where it lies."""
    target = folder / f"e2b-{release}"
    options = ("-q", "--disable-pip-version-check", "--no-compile", "--target", target)
    run(sys.executable, "-m", "pip", "install", *options, f"e2b=={release}", folder=folder)
    return target


def of_sdk(facade: E2BProcess) -> dict[str, str]:
    """Return the environment that leads an SDK to the facade."""
    return {
        "E2B_API_URL": facade.url,
        "E2B_SANDBOX_URL": facade.url,
        "E2B_API_KEY": f"e2b_{'0' * 40}",
    }


def check(told: dict[str, Any], suite: str) -> None:
    """Every call gave what E2B's users expect."""
    sandbox = told.pop("sandbox")
    assert len(told) >= 40
    expected = {
        "run": [0, "out\n", "err\n"],
        "run fails": [True, 7, "no\n"],
        "run with callback": "1\n2\n3\n",
        "envs": "1-2\n",
        "cwd": "/tmp\n",
        "user": True,
        "other user": True,
        "timeout": True,
        "utf-8": "grüße 日本",
        "list": ["/bin/bash", "echo up; exec sleep 300"],
        "kill": True,
        "wait for the killed": -1,
        "kill again": False,
        "list after": [],
        "connect": True,
        "stdin": "one\ntwo\nthree\n",
        "connect to nothing": True,
        "pty resize": None,
        "pty end": 0,
        "pty": [True, True],
        "write": ["a b.txt", "/workspace/repo/notes/a b.txt"],
        "read": "one\n",
        "write bytes": "raw",
        "read bytes": True,
        "read stream": True,
        "write many": ["/workspace/repo/many/1", "/workspace/repo/many/2"],
        "list files": [["1", "file", 1], ["2", "file", 1]],
        "list deep": [
            f"/workspace/repo/{each}"
            for each in ("big", "many", "many/1", "many/2", "notes", "notes/a b.txt", "raw")
        ],
        "exists": [True, False],
        "info": ["1", "file", 1, "-rw-r--r--", "user"],
        "make": [True, False],
        "rename": "/workspace/repo/moved/one",
        "removed": False,
        "read nothing": True,
        "list nothing": True,
        "watch": True,
        "watch nothing": True,
        "download": "for everybody",
        "upload": "sent.txt",
        "uploaded": "up",
        "running": True,
        "get_info": [True, "base", {"suite": suite}],
        "set_timeout": True,
        "metrics": [1, True],
        "list sandboxes": [sandbox],
        "list others": [],
        "connected": "1\n",
        "unknown template": True,
        "killed": True,
        "killed again": False,
        "runs no more": False,
        "nothing runs": True,
    }
    assert told == expected


def check_record(client: Client, sandbox: str) -> None:
    """What was done in the sandbox stands in its record."""
    runs = [info for info in client.workspace(sandbox).runs() if info.command]
    told = [" ".join(info.command or ()) for info in runs]
    assert "/bin/bash -l -c echo out; echo err >&2" in told
    assert "/bin/bash -i -l" in told
    first = next(info for info in runs if "echo out; echo err" in " ".join(info.command or ()))
    assert client.run(first.id).scrollback("stderr") == b"err\n"
    boot = next(iter(client.workspace(sandbox).runs(mode="boot")))
    accesses = [event["ref"] for event in client.run(boot.id).timeline(kinds=["fileAccessed"])]
    assert {(each, "/workspace/repo/notes/a b.txt") for each in ("write", "read")} <= {
        (each["action"], each["path"]) for each in accesses
    }


def test_the_range_that_is_served_is_the_one_that_is_tested() -> None:
    for language, releases in (("python", PYTHON), ("js", JAVASCRIPT)):
        ends = [tuple(int(part) for part in release.split(".")) for release in releases]
        assert TESTED[language] == (ends[0], ends[-1])


@pytest.mark.parametrize("release", PYTHON)
def test_a_release_of_the_python_sdk_does_all_calls(
    facade: E2BProcess, python: Path, client: Client, tmp_path: Path, release: str
) -> None:
    path = str(installed(release, tmp_path))
    suite = f"python-{release}"
    printed = run(
        *(python, HERE / "scripted.py", suite), folder=tmp_path, PYTHONPATH=path, **of_sdk(facade)
    )
    told = json.loads(printed)
    sandbox = told["sandbox"]
    check(told, suite)
    check_record(client, sandbox)


@pytest.mark.parametrize("release", JAVASCRIPT)
def test_a_release_of_the_javascript_sdk_does_all_calls(
    facade: E2BProcess, node_modules: Path, client: Client, release: str
) -> None:
    suite = f"js-{release}"
    program = ("node", "scripted.mjs", f"e2b-{release}", suite)
    told = json.loads(run(*program, folder=node_modules, **of_sdk(facade)))
    sandbox = told["sandbox"]
    check(told, suite)
    check_record(client, sandbox)


def test_another_release_of_the_python_sdk_is_refused_on_its_first_call(
    facade: E2BProcess, python: Path, tmp_path: Path
) -> None:
    path = str(installed(UNTESTED["python"], tmp_path))
    program = "import e2b\ntry: e2b.Sandbox.create()\nexcept Exception as e: print(e)"
    said = run(python, "-c", program, folder=tmp_path, PYTHONPATH=path, **of_sdk(facade))
    assert "python 2.7.0" in said
    assert "e2b 2.8.0 to 2.63.0 for Python" in said


def test_another_release_of_the_javascript_sdk_is_refused_on_its_first_call(
    facade: E2BProcess, node_modules: Path
) -> None:
    program = (
        f"const {{ Sandbox }} = await import('e2b-{UNTESTED['js']}');"
        "try { await Sandbox.create() } catch (error) { console.log(String(error)) }"
    )
    (node_modules / "untested.mjs").write_text(program)
    said = run("node", "untested.mjs", folder=node_modules, **of_sdk(facade))
    assert "js 2.7.0" in said
    assert "e2b 2.8.4 to 2.51.0 for JavaScript" in said
