"""Steps of builds have limits, and reach what a workspace reaches: no more, and nothing without."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from builds.images.compiler import BuildError
from builds.planner import ImagePlan, PlanFile, plan
from registries.client import RegistryClient
from registries.services import configured_registry
from runs.agent_archive import agent_archive
from tests.builds.bench import BASE_IMAGE, NEVER, PLAN, Bench, running
from tests.builds.planner.images import CATALOGUE, extra_ca
from tests.security.surroundings import PORT, PRIVATE, PUBLIC, greeting_host, outside_world
from tests.workspaces.conftest import Launcher
from tests.workspaces.conftest import docker_client as docker_client
from tests.workspaces.conftest import launcher as launcher
from tests.workspaces.conftest import make_launcher as make_launcher
from tests.workspaces.conftest import publish as publish
from tests.workspaces.conftest import workspace_image as workspace_image
from workspaces.blueprint import Blueprint
from workspaces.runtimes.docker.build.build_steps import STEP_NAME, StepLimits
from workspaces.runtimes.docker.images import STEP_LABEL
from workspaces.runtimes.docker.network_guard.keeper import NetworkGuard

pytestmark = pytest.mark.docker

REACH = f"(exec 3<>/dev/tcp/{{}}/{PORT} && head -c 7 <&3) 2>/dev/null | grep -q welcome"


@pytest.fixture
def confined(launcher: Launcher, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Make a bench whose steps are limited, as a worker's are."""
    made: list[Bench] = []

    def make(*, memory_mb: int = 1024, cpus: float = 1.0, pids: int = 512) -> Bench:
        limits = StepLimits(
            network=lambda egress: launcher.adapter.build_network(
                uuid4(), oldest=3600, egress=egress
            ),
            memory_mb=memory_mb,
            cpus=cpus,
            pids=pids,
        )
        registry: RegistryClient = configured_registry()
        # The first one installs the packages of a family, which a busy machine takes its time for.
        place = tmp_path / f"builds-{len(made)}"
        made.append(Bench(place, registry, limits=limits, build_timeout=600.0))
        return made[-1]

    yield make
    for bench in made:
        bench.discard_all()


@pytest.fixture
def guard(launcher: Launcher) -> Iterator[NetworkGuard]:
    guard = launcher.adapter.network_guard(base_image=BASE_IMAGE)
    yield guard
    guard.remove()


def test_a_package_reaches_what_a_workspace_reaches_and_no_more(
    confined: Callable[..., Bench], launcher: Launcher, guard: NetworkGuard, tmp_path: Path
) -> None:
    with outside_world(), greeting_host():
        world = REACH.format(PUBLIC)
        forbidden = [REACH.format(host) for host in (PRIVATE, "172.17.0.1")]
        confined().build(installing(tmp_path, world, *forbidden))

        guard.ensure()
        refused = [f"! timeout 3 bash -c '{each}'" for each in forbidden]
        confined().build(installing(tmp_path, world, *refused))
    assert launcher.networks() == []


def test_a_step_that_installs_nothing_has_no_network(
    confined: Callable[..., Bench], launcher: Launcher
) -> None:
    bench = confined()
    bench.build(running(f"ls /sys/class/net; exit  # {uuid4()}"))
    assert bench.printed == b"lo\n"


def test_a_step_has_limits_of_memory_processors_and_processes(
    confined: Callable[..., Bench],
) -> None:
    cgroup = "/sys/fs/cgroup"
    asked = [
        f"cat {cgroup}/memory.max {cgroup}/memory/memory.limit_in_bytes",
        f"cat {cgroup}/pids.max {cgroup}/pids/pids.max",
        f"cat {cgroup}/cpu.max {cgroup}/cpu/cpu.cfs_quota_us",
    ]
    bench = confined(memory_mb=192, cpus=0.5, pids=64)
    bench.build(running(f"({'; '.join(asked)}) 2>/dev/null; : {uuid4()}"))
    told = [line.split()[0] for line in bench.printed.decode().splitlines()]
    assert told == [str(192 << 20), "64", "50000"]


def test_a_step_that_takes_more_memory_than_it_may_fails(
    confined: Callable[..., Bench], tmp_path: Path
) -> None:
    greedy = installing(tmp_path, "perl -e 'my $x = \"a\" x (600 << 20); print length $x'")
    with pytest.raises(BuildError) as caught:
        confined(memory_mb=192).build(greedy)
    assert caught.value.code == "build-command-failed"
    confined(memory_mb=2048).build(greedy)


def installing(folder: Path, *checks: str) -> ImagePlan:
    """A plan that installs a package from a source in the image.

    Its maintainer's script, in bash, makes one check after the other and fails with the first that
    does. Nothing of it is taken from an earlier build.
    """
    name = f"checks-{uuid4().hex}"
    control = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: tests <t@t.invalid>\n"
    script = "\n".join(["#!/bin/bash", "set -e", *checks, "echo all was as expected", ""])
    place = folder / name / "DEBIAN"
    place.mkdir(parents=True)
    (place / "control").write_text(f"{control}Description: checks\n")
    (place / "postinst").write_text(script)
    (place / "postinst").chmod(0o755)
    made = folder / f"{name}.deb"
    command = ["dpkg-deb", "--build", "--root-owner-group", str(place.parent), str(made)]
    subprocess.run(command, check=True, capture_output=True)
    package = made.read_bytes()
    digest = sha256(package).hexdigest()
    index = f"{control}Filename: ./it.deb\nSize: {len(package)}\nSHA256: {digest}\n"
    ours = plan(Blueprint.parse({"harness": {"id": "shell"}}), "debian", CATALOGUE)
    scripts = [file for file in ours.files if file.path == "install/packages.sh"]
    return replace(
        PLAN,
        sources=(),
        files=(
            *scripts,
            PlanFile("source/it.deb", package),
            PlanFile("source/Packages", index.encode()),
            PlanFile("sources.list", b"deb [trusted=yes] file:/srv/source ./\n"),
            PlanFile("install/packages.list", f"{name}\n".encode()),
        ),
        dockerfile=f"""\
FROM {BASE_IMAGE}
COPY source/it.deb source/Packages /srv/source/
COPY sources.list /etc/apt/sources.list
COPY install/packages.sh install/packages.list /install/
RUN ["/bin/sh", "/install/packages.sh", "/install/packages.list"]
""",
    )


# CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SYS_CHROOT AUDIT_WRITE SETFCAP
CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 18, 29, 31)
"""What packages may do, by the kernel's numbers."""
NO_SOCKET = "perl -MSocket -e 'socket(S, {}) and exit 9; exit($! + 0 != 1)'"
MORE_THAN_IT_MAY = """perl -e '
for (1 .. 100) {
    my $child = fork;
    unless (defined $child) { kill 9, @children; wait for @children; exit 0 }
    unless ($child) { sleep 600; exit }
    push @children, $child;
}
kill 9, @children; exit 9'"""


def test_a_package_has_no_raw_sockets_no_device_files_and_every_limit(
    confined: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = confined(memory_mb=320, cpus=0.5, pids=64)
    sockets = ("AF_INET, SOCK_RAW, 1", "17, SOCK_RAW, 3", "40, SOCK_STREAM, 0")
    bench.build(
        installing(
            tmp_path,
            *(NO_SOCKET.format(each) for each in sockets),
            "! mknod /disk b 8 0",
            "[ ! -e /disk ]",
            MORE_THAN_IT_MAY,
            "grep CapBnd /proc/self/status",
        )
    )
    assert b"all was as expected" in bench.printed
    assert b"mknod: /disk: Operation not permitted" in bench.printed
    (bounding,) = re.findall(rb"CapBnd:\s+(\w+)", bench.printed)
    assert int(bounding, 16) == sum(1 << number for number in CAPABILITIES)


HOSTILE = """
import errno, os, socket, stat, sys

def refused(ask):
    try:
        ask()
    except OSError as error:
        return error.errno == errno.EPERM
    return False

def read(*names):
    for name in names:
        if os.path.exists(name):
            return open(name).read().split()[0]

device = os.makedev(8, 0)  # the first disk of the engine's machine
group = "/sys/fs/cgroup"
held = {
    "packets": refused(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "raw": refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
    "hypervisor": refused(lambda: socket.socket(40, socket.SOCK_STREAM)),
    "disk": refused(lambda: os.mknod("/disk", 0o600 | stat.S_IFBLK, device)),
    "memory": read(group + "/memory.max", group + "/memory/memory.limit_in_bytes")
    == str(320 << 20),
    "processors": read(group + "/cpu.max", group + "/cpu/cpu.cfs_quota_us") == "50000",
    "processes": read(group + "/pids.max", group + "/pids/pids.max") == "64",
    "interfaces": os.listdir("/sys/class/net") == ["lo"],
    "root": os.geteuid() == 0,
}
bounding = int(next(line for line in open("/proc/self/status") if "CapBnd" in line).split()[1], 16)
held["capabilities"] = not bounding & (1 << 13 | 1 << 27 | 1 << 21 | 1 << 31)
print("held:", held)
sys.exit(0 if all(held.values()) else 3)
"""


def test_an_authors_installation_has_no_raw_sockets_no_device_files_and_every_limit(
    confined: Callable[..., Bench],
) -> None:
    bench = confined(memory_mb=320, cpus=0.5, pids=64)
    build(bench, f"python3 - <<'END' # {uuid4()}\n{HOSTILE}\nEND", outbound=False)
    assert b"held:" in bench.printed


def test_what_an_installation_changed_gets_no_more_in_the_steps_after_it(
    confined: Callable[..., Bench],
) -> None:
    # Our own steps use this program.
    install = f"""# {uuid4()}
        program=$(readlink -f /usr/bin/python3) && mv "$program" "$program.real"
        cat > "$program" <<END
#!/bin/sh
mknod /tmp/disk b 8 0 2>/tmp/answer || true
[ -e /tmp/disk ] && echo "a later step made a device file" && exit 9
echo "a later step may not: \\$(cat /tmp/answer)"
exec $program.real "\\$@"
END
        chmod 755 "$program"
    """
    bench = confined()
    build(bench, install, outbound=False)
    assert bench.printed.count(b"a later step may not: ") == 2


def test_an_installation_that_fails_or_is_cancelled_leaves_no_container(
    confined: Callable[..., Bench], launcher: Launcher
) -> None:
    bench, job_id = confined(), uuid4()
    with pytest.raises(BuildError) as caught:
        build(bench, f"echo the reason >&2; exit 7 # {uuid4()}", outbound=False, job_id=job_id)
    assert caught.value.code == "build-command-failed"
    assert "exit code 7 at the step RUN" in caught.value.message
    assert "the reason" in caught.value.message
    assert steps_of(launcher, job_id) == []

    cancelled, last = threading.Event(), f"echo is running; sleep 600 # {uuid4()}"
    instances = []

    def look(printed: bytes) -> None:
        if b"is running" in printed and not cancelled.is_set():
            (name,) = steps_of(launcher, job_id)
            instances.append(launcher.client.containers.get(name).labels.get("svc.instance"))
            cancelled.set()

    bench.on_output = look
    with pytest.raises(BuildError) as caught:
        build(bench, last, outbound=False, cancelled=cancelled, job_id=job_id)
    assert caught.value.code == "build-cancelled"
    assert instances == ["tests"]  # an uninstall finds it
    assert steps_of(launcher, job_id) == []


def test_nothing_of_the_operators_settings_is_in_an_image(
    confined: Callable[..., Bench],
    launcher: Launcher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The command line puts what these say of proxies, passwords too, into what it runs.
    told = {"proxies": {"default": {"noProxy": "the-operators-own.invalid"}}}
    (tmp_path / "config.json").write_text(json.dumps(told))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    image = confined().build(running(f": {uuid4()}"))
    found = launcher.client.images.get(image.image_id)
    assert STEP_LABEL in found.labels
    assert "the-operators-own" not in json.dumps(found.attrs)


def build(
    bench: Bench,
    install: str,
    *,
    outbound: bool,
    cancelled: threading.Event = NEVER,
    job_id: UUID | None = None,
    **members: object,
) -> str:
    """Build a workspace with an installation of its author's; return the image's id."""
    blueprint = Blueprint.parse(
        {"harness": {"id": "custom", "command": ["mine"], "install": install}, **members}
    )
    image = bench.compiler.build(
        replace(plan(blueprint, "debian", CATALOGUE), sources=()),
        checkouts={},
        agent=agent_archive(),
        extra_ca=extra_ca(),
        job_id=job_id or uuid4(),
        attempt_count=1,
        labels={"svc.instance": "tests"},
        log=bench,
        cancelled=cancelled,
        outbound=outbound,
    )
    bench.built.append(image)
    return image.image_id


def steps_of(launcher: Launcher, job_id: UUID) -> list[str]:
    """The containers of a job's steps that are there; other tests have theirs on this engine."""
    name = f"^/{STEP_NAME}-{job_id}-"
    found = launcher.client.containers.list(all=True, filters={"name": name}, ignore_removed=True)
    return [str(each.name) for each in found]


def test_without_outbound_an_authors_installation_has_no_network_while_packages_are_installed(
    confined: Callable[..., Bench],
) -> None:
    install = '[ "$(ls /sys/class/net)" = lo ] && command -v tree'
    packages = {"packages": [{"id": "tree"}]}
    bench = confined()
    build(bench, f"{install} # {uuid4()}", outbound=False, tooling=packages)
    assert b"/usr/bin/tree\n" in bench.printed


def test_what_an_author_installs_is_taken_again_only_where_it_reached_the_same(
    confined: Callable[..., Bench],
) -> None:
    install = f"cat /proc/sys/kernel/random/uuid > /made-once # {uuid4()}"
    bench = confined()

    def built(*, outbound: bool) -> str:
        return build(bench, install, outbound=outbound)

    online, offline = built(outbound=True), built(outbound=False)
    assert online != offline
    assert (built(outbound=True), built(outbound=False)) == (online, offline)


def test_a_network_that_a_killed_build_left_goes_and_that_of_a_build_under_way_stays(
    launcher: Launcher,
) -> None:
    labels = {"svc.instance": launcher.instance_id, "svc.build": "left"}
    left = launcher.client.networks.create(
        f"svc-test-{launcher.instance_id}", labels=labels | {"svc.build-began": "1000000000"}
    )
    adapter = launcher.adapter
    with (
        adapter.build_network(uuid4(), oldest=60) as first,
        adapter.build_network(uuid4(), oldest=60) as second,
    ):
        there = {str(network.name) for network in launcher.networks()}
        assert there == {first, second}
    assert launcher.networks() == []
    assert left.name not in {first, second}
