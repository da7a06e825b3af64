"""What is written about the set-up is true: every setting and every command is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from deploy.up.own_processes import PROCESSES

CHECKOUT = Path(__file__).resolve().parents[2]
README = CHECKOUT / "deploy" / "README.md"
EXAMPLE = CHECKOUT / "deploy" / ".env.example"
# Set by the set-up for itself, not by people.
_INTERNAL = {"SVC_UP_PARTS"}


def _settings_read() -> set[str]:
    """Every setting the code reads: the settings package, and what the set-up reads itself."""
    modules = (CHECKOUT / "controlplane" / "settings").glob("*.py")
    text = "".join(path.read_text() for path in modules)
    readers = r"(?:env\.\w+|secret|positive|port|port_or_none|zero_or_more|words|queue|image)"
    names = set(re.findall(readers + r'\(\s*"([A-Z][A-Z0-9_]+)"', text))
    for path in (CHECKOUT / "deploy").rglob("*.py"):
        names |= set(re.findall(r'"(SVC_[A-Z0-9_]+)"', path.read_text()))
    for path in (CHECKOUT / "deploy" / "install").iterdir():
        asked = r"(?:setting|service_image) (SVC_[A-Z0-9_]+)"
        names |= set(re.findall(asked, path.read_text()))
    return names - _INTERNAL


def test_every_setting_is_explained() -> None:
    explained = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", README.read_text()))
    assert len(_settings_read()) > 60
    assert _settings_read() - explained == set()


def test_the_example_lists_every_setting_once_and_no_other() -> None:
    listed = re.findall(r"^#([A-Z][A-Z0-9_]+)=", EXAMPLE.read_text(), flags=re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == _settings_read()


def test_the_example_sets_nothing() -> None:
    assert [line for line in EXAMPLE.read_text().splitlines() if line and line[0] != "#"] == []


def test_every_make_target_that_is_described_exists() -> None:
    described = set(re.findall(r"`make ([a-z-]+)", README.read_text()))
    listed = subprocess.run(
        ["make", "help"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout
    assert described <= set(re.findall(r"make ([a-z-]+)", listed))
    assert {"demo", "test", "up", "down", "lint"} <= described


def test_the_events_of_the_gateways_log_that_are_described_exist() -> None:
    chapter = README.read_text().partition("## SSH gateway")[2].partition("\n## ")[0]
    described = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", chapter)) - {"known_hosts"}
    code = "".join(path.read_text() for path in (CHECKOUT / "runs" / "gateway").rglob("*.py"))
    assert len(described) > 5
    assert [event for event in sorted(described) if f'"{event}"' not in code] == []


@pytest.mark.parametrize("page", ["deploy/README.md", "docs/operators/install.md"])
def test_every_process_that_is_kept_running_is_named(page: str) -> None:
    text = (CHECKOUT / page).read_text()
    (named,) = (part for part in text.split("\n\n") if "under supervisord" in part)
    assert {each.name for each in PROCESSES} - set(re.findall(r"`([a-z]+)`", named)) == set()


@pytest.mark.parametrize("page", ["deploy/README.md", "docs/operators/metrics.md"])
def test_every_name_that_logs_have_for_a_process_is_told(page: str) -> None:
    commands = CHECKOUT.glob("*/management/commands/*.py")
    text = "".join(path.read_text() for path in commands)
    names = set(re.findall(r"named_process\((\w+)=", text))
    assert len(names) == 5
    assert {name for name in names if f"`{name}`" not in (CHECKOUT / page).read_text()} == set()


@pytest.mark.parametrize("script", [".ci/run"])
def test_scripts_are_sound_shell(script: str) -> None:
    subprocess.run(["bash", "-n", CHECKOUT / script], check=True)
