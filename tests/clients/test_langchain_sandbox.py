"""The sandbox for LangChain, held to LangChain's own tests in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.clients.places import CLIENTS, python_path
from tests.conftest import OWNER
from tests.stack.gateway_process import ApiProcess

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1200)]

PROJECT = CLIENTS / "langchain"
STANDARD_TESTS = 86
"""Those of ``langchain-tests`` 1.1.9, the one included that forbids to replace any."""

FORBIDDEN_SINCE_0_7 = {
    "test_glob",
    "test_glob_basic_pattern",
    "test_glob_hidden_files_explicitly",
    "test_glob_with_character_class",
    "test_glob_with_directories",
    "test_glob_with_question_mark",
    "test_write_existing_file_fails",
}
"""Standard tests that demand what ``deepagents`` demands no more."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with what the sandbox is tested with, but for ``deepagents``."""
    folder = tmp_path_factory.mktemp("langchain") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    # Most of what is installed is never imported, so pip need not compile it.
    options = ("-q", "--no-compile", "-r", str(PROJECT / "requirements-test.txt"))
    done(python, "-m", "pip", "install", *options)
    return python


@pytest.fixture(scope="module", params=["0.6.12", "0.7.32"])
def release(installed: Path, request: pytest.FixtureRequest) -> str:
    """A release of ``deepagents`` that is installed now."""
    wanted: str = request.param
    options = ("-q", "--no-compile", "--no-deps", f"deepagents=={wanted}")
    done(installed, "-m", "pip", "install", *options)
    done(installed, "-m", "pip", "check")
    return wanted


def beside(python: Path, name: str) -> Path:
    """Return a folder of this module beside the environment of ``python``."""
    return python.parents[2] / name


def done(python: Path, *words: str, **changes: str) -> str:
    """Run Python where the sandbox lies, and return what it printed.

    What it compiles is kept beside the environment, for the next call and out of the checkout.
    """
    kept = {name: each for name, each in os.environ.items() if not name.startswith("PY")}
    compiled = str(beside(python, "compiled"))
    ended = subprocess.run(
        [str(python), *words],
        cwd=PROJECT,
        env={**kept, "PYTHONPYCACHEPREFIX": compiled, **changes},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def test_its_types_are_those_of_deepagents(installed: Path, release: str) -> None:
    cache = beside(installed, "types")  # what both releases import is looked at once
    done(installed, "-m", "mypy", f"--cache-dir={cache}", "controlplane_langchain")


def test_it_passes_all_standard_tests_but_those_that_deepagents_itself_forbids(
    installed: Path, release: str, api_process: ApiProcess, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    done(
        installed,
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"),
        PYTHONPATH=python_path(),
        SVC_BASE_URL=api_process.url,
        SVC_OWNER_USER_ID=OWNER,
    )
    cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314
    standard = [
        case for case in cases if case.attrib["classname"].endswith(".TestControlPlaneSandbox")
    ]
    assert len(standard) == STANDARD_TESTS
    not_passed = {case.attrib["name"] for case in cases if len(case)}
    assert not_passed == (set() if release == "0.6.12" else FORBIDDEN_SINCE_0_7)
