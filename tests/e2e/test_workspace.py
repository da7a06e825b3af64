"""What a workspace is like from inside, when the whole service made it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.stack.service import GitServer, Stack, Started
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker

HOME = "/home/workspace"


@pytest.fixture(scope="module")
def dotfiles(git_server: GitServer) -> str:
    """The URL of dotfiles with an installation script."""
    return git_server.publish(
        "dotfiles",
        {
            ".greeting": "hello\n",
            ".config/tool/settings": "colour = blue\n",
            "install.sh": '#!/bin/sh\nid -un > "$HOME/installed-by"\n',
        },
        executable=("install.sh",),
    )


@pytest.fixture(scope="module")
def rich(stack: Stack, git_server: GitServer, dotfiles: str) -> Started:
    """A workspace with everything: source, dotfiles, steps, environment, limits."""
    app = git_server.publish(
        "app", {"README": "one\n", "run.sh": "#!/bin/sh\necho run\n"}, executable=("run.sh",)
    )
    return stack.ready(
        {
            "sources": {
                "workspace": {"url": app},
                "inputs": [{"id": "mine", "purpose": "dotfiles", "url": dotfiles}],
            },
            "customization": {"dotfilesManager": "copy"},
            "lifecycle": {
                "setup": [{"id": "count", "run": "echo setup >> /workspace/history"}],
                "startup": {
                    "steps": [{"run": "echo startup >> /workspace/history"}],
                    "foreground": {
                        "kind": "command",
                        "run": "env -0 > /workspace/written && mv /workspace/written"
                        " /workspace/environment; exec sleep infinity",
                    },
                },
            },
            "runtime": {
                "env": {"MODE": "careful", "ODD": "a 'b' \"c\" $HOME `d` \\ ü"},
                "resources": {"memoryMb": 192, "cpus": 0.5, "pids": 77},
            },
        }
    )


# ---------------------------------------------------------------- sources


def test_the_source_is_a_clean_checkout_that_belongs_to_the_user(
    stack: Stack, rich: Started, git_server: GitServer
) -> None:
    status = stack.inside(rich, "cd /workspace/repo && git status --porcelain --branch")
    assert status == "## trunk...origin/trunk"
    assert stack.inside(rich, "cd /workspace/repo && git log --format='%H %s'") == (
        f"{git_server.commits['app:first']} first"
    )
    strangers = stack.inside(rich, "find /workspace/repo ! -user workspace", user="root")
    assert strangers == ""
    assert stack.inside(rich, "/workspace/repo/run.sh") == "run"


def test_the_user_can_commit_in_the_checkout(stack: Stack, rich: Started) -> None:
    said = stack.inside(
        rich,
        "cp -r /workspace/repo /tmp/copy && cd /tmp/copy && echo two > README"
        " && git -c user.name=a -c user.email=a@example.org commit -qam second"
        " && git log --format=%s && git diff --stat HEAD~1 | tail -1",
    )
    assert said.splitlines()[:1] == ["second"]


def test_the_checkout_knows_its_origin_and_no_credential(
    stack: Stack, rich: Started, git_server: GitServer
) -> None:
    origin = stack.inside(rich, "git -C /workspace/repo remote get-url origin")
    assert origin == f"{git_server.url}/git/app.git"
    config = stack.inside(rich, "cat /workspace/repo/.git/config").lower()
    for word in ("credential", "extraheader", "askpass", "token", "insteadof"):
        assert word not in config
    assert "@" not in config


def test_no_trace_of_the_build_is_left_on_the_workers_disk(stack: Stack, rich: Started) -> None:
    builds = stack.worker.log.parent / "data" / "builds"
    assert list(builds.iterdir()) == []
    # Not `images.list()`, which stumbles over an image that somebody removes meanwhile.
    names = [tag for image in stack.engine.api.images() for tag in image["RepoTags"] or ()]
    assert not [name for name in names if rich.answer["jobId"] in name]


# ---------------------------------------------------------------- dotfiles


def test_dotfiles_are_copied_into_the_home_and_belong_to_the_user(
    stack: Stack, rich: Started
) -> None:
    assert stack.inside(rich, "cat ~/.greeting ~/.config/tool/settings") == "hello\ncolour = blue"
    owners = stack.inside(rich, "stat -c %U ~/.greeting ~/.config ~/.config/tool/settings")
    assert set(owners.split()) == {"workspace"}


def test_the_bootstrap_of_the_dotfiles_runs_as_the_user(stack: Stack, rich: Started) -> None:
    assert stack.inside(rich, "cat ~/installed-by") == "workspace"


@dataclass(frozen=True)
class Managed:
    """Dotfiles in the form of one manager, and what they have to come to."""

    files: dict[str, str]
    manager: str
    look: str
    see: str


MANAGED = {
    "stow": Managed(
        {"shell/.from-stow": "stowed\n", "shell/.config/deep": "x\n"},
        "stow",
        "cat ~/.from-stow && readlink -f ~/.from-stow",
        "stowed\n/usr/share/svc/dotfiles/shell/.from-stow",
    ),
    "chezmoi": Managed(
        {
            "dot_from-chezmoi": "managed\n",
            "private_dot_secret": "s\n",
            ".chezmoiignore": "README\n",
        },
        "auto",
        "cat ~/.from-chezmoi && stat -c %a ~/.secret",
        "managed\n600",
    ),
}


@pytest.mark.parametrize("name", sorted(MANAGED))
def test_dotfiles_are_applied_by_their_manager(
    stack: Stack, git_server: GitServer, name: str
) -> None:
    managed = MANAGED[name]
    url = git_server.publish(f"dotfiles-{name}", managed.files)
    started = stack.ready(
        {
            "sources": {"inputs": [{"id": "mine", "purpose": "dotfiles", "url": url}]},
            "customization": {"dotfilesManager": managed.manager},
        }
    )
    assert stack.inside(started, managed.look) == managed.see


# ---------------------------------------------------------------- processes and limits


def test_the_environment_reaches_the_foreground_process_unchanged(
    stack: Stack, rich: Started
) -> None:
    written = "test -e /workspace/environment && echo written || true"
    eventually(lambda: stack.inside(rich, written), what="the process has begun")
    shown = stack.inside(rich, "tr '\\0' '\\n' < /workspace/environment")
    environment = dict(line.split("=", 1) for line in shown.splitlines())
    assert environment["MODE"] == "careful"
    assert environment["ODD"] == "a 'b' \"c\" $HOME `d` \\ ü"
    assert environment["HOME"] == HOME
    assert environment["USER"] == "workspace"
    assert environment["PWD"] == "/workspace/repo"


def test_the_limits_of_the_blueprint_hold_inside(stack: Stack, rich: Started) -> None:
    def limit(new: str, old: str) -> str:
        return stack.inside(
            rich, f"cat /sys/fs/cgroup/{new} 2>/dev/null || cat /sys/fs/cgroup/{old}"
        )

    assert limit("memory.max", "memory/memory.limit_in_bytes") == str(192 << 20)
    assert limit("pids.max", "pids/pids.max") == "77"
    quota, *period = limit("cpu.max", "cpu/cpu.cfs_quota_us").split()
    of = period[0] if period else stack.inside(rich, "cat /sys/fs/cgroup/cpu/cpu.cfs_period_us")
    assert int(quota) / int(of) == 0.5


def test_setup_runs_once_and_startup_at_every_start(stack: Stack, git_server: GitServer) -> None:
    started = stack.ready(
        {
            # Any other workspace's record has ended with it, so it does not start again.
            "runtime": {"persistence": "persistent"},
            "lifecycle": {
                "setup": [{"run": "echo setup >> /workspace/history"}],
                "startup": {"steps": [{"run": "echo startup >> /workspace/history"}]},
            },
        }
    )
    read = "cat /workspace/history"
    assert stack.inside(started, read).split() == ["setup", "startup"]

    stack.container(started).restart(timeout=int(LONG_WAIT))

    ready = "/usr/lib/svc/agent status --wait 300 > /dev/null"
    stack.inside(started, ready, user="root")
    assert stack.inside(started, read).split() == ["setup", "startup", "startup"]


# ---------------------------------------------------------------- network


@pytest.fixture(scope="module")
def listener() -> Iterator[int]:
    """The port of a server on every address of this machine; it greets whoever connects."""
    server = socket.create_server(("0.0.0.0", 0))  # noqa: S104 - containers have to reach it
    ended = threading.Event()

    def greet() -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                if ended.is_set():
                    return
                connection.sendall(b"welcome")

    thread = threading.Thread(target=greet)
    thread.start()
    port: int = server.getsockname()[1]
    yield port
    ended.set()
    socket.create_connection(("127.0.0.1", port)).close()
    thread.join()
    server.close()


def reach(address: str, port: int) -> str:
    """Return a script that says what the server at an address says, or that it cannot be had."""
    program = (
        f"import socket; s = socket.create_connection(('{address}', {port}), {LONG_WAIT});"
        " print(s.recv(100).decode())"
    )
    return f'python3 -c "{program}" 2>/dev/null || echo unreachable'


def test_a_workspace_reaches_others_unless_the_blueprint_forbids_it(
    stack: Stack, rich: Started, listener: int
) -> None:
    networks: dict[str, Any] = stack.container(rich).attrs["NetworkSettings"]["Networks"]
    (network,) = networks.values()
    gateway = network["Gateway"]
    assert stack.inside(rich, reach(gateway, listener)) == "welcome"

    alone = stack.ready({"runtime": {"network": {"outbound": False}}})

    assert stack.inside(alone, reach(gateway, listener)) == "unreachable"
    assert stack.inside(alone, "ls /sys/class/net") == "lo"
    assert stack.inside(alone, reach("172.17.0.1", listener)) == "unreachable"
