"""``make bench-ssh``: our gateway against ``sshd`` in the same container. Not a test.

Every way in is measured in turn, by the same client with the same options, so that a busy machine
is busy for all of them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import TYPE_CHECKING

from tests.bench.figures import Figure, percentile, report

if TYPE_CHECKING:
    from tests.bench.ssh_clients import Transfer
    from tests.bench.ssh_place import Place, Side

CONNECT = 1.5
BULK = 0.5
TERMINAL = 0.8
ECHO_SECONDS = 0.002
RECORDING = 0.85
OFF = "  recording off, against sshd"
"""What our gateway costs without its records, by the samples of the lines above."""
_PAUSE_SECONDS = 0.005
_WARM_KEYS = 50


@dataclass(frozen=True)
class Effort:
    """How often and how much."""

    logins: int = 12
    rounds: int = 3
    mib: int = 128
    terminal_mib: int = 48
    keys: int = 2000
    sessions: int = 200


QUICK = Effort(logins=5, rounds=2, mib=32, terminal_mib=16, keys=300, sessions=20)


@dataclass
class Samples:
    """What was measured for one thing, by way in."""

    of: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: Side, value: float) -> None:
        """Take one measurement."""
        self.of.setdefault(side.name, []).append(value)

    @property
    def count(self) -> int:
        """How often each way in was measured."""
        return min(map(len, self.of.values()))

    def median(self, side: Side) -> float:
        """Return the middle one."""
        return median(self.of[side.name])

    def percentile(self, side: Side, percent: int) -> float:
        """Return the value that so many percent do not exceed."""
        return percentile(self.of[side.name], percent)

    def shown(self, side: Side, unit: float, name: str) -> str:
        """Return the median and, behind it, where the middle half lies."""
        values = [value / unit for value in self.of[side.name]]
        middle = f"{median(values):.0f} {name}"
        if len(values) < 2:
            return middle
        low, _, high = quantiles(values, n=4, method="inclusive")
        return f"{middle} ({low:.0f}-{high:.0f})"


def logins(place: Place, effort: Effort) -> list[Figure]:
    """Logins: until the prompt is there, and a command from beginning to end."""
    from tests.bench.ssh_clients import command, prompt
    from tests.bench.ssh_place import CIPHER

    figures = []
    kinds: dict[str, Callable[..., float]] = {"prompt": prompt, "`true`": command}
    taken = {(kind, cipher): Samples() for kind in kinds for cipher in (CIPHER, None)}
    for number in range(effort.logins):
        for (kind, cipher), samples in taken.items():
            if cipher is None and number % 2:
                continue  # the cipher matters little here
            for side in _turn(place.sides, number):
                samples.add(side, kinds[kind](side, cipher=cipher))
                place.rest()
    for (kind, cipher), samples in taken.items():
        ratio = samples.median(place.recorded) / samples.median(place.sshd)
        figures.append(
            Figure(
                f"connect to {kind}, {_cipher(cipher)}, median of {samples.count}",
                samples.shown(place.recorded, 0.001, "ms"),
                samples.shown(place.sshd, 0.001, "ms"),
                ratio,
                f"<= {CONNECT}x",
                ratio <= CONNECT,
            )
        )
        off = samples.median(place.unrecorded)
        figures.append(
            Figure(
                "  recording on, against off",
                samples.shown(place.recorded, 0.001, "ms"),
                samples.shown(place.unrecorded, 0.001, "ms"),
                samples.median(place.recorded) / off,
                "",
                True,
            )
        )
        figures.append(
            Figure(
                OFF,
                samples.shown(place.unrecorded, 0.001, "ms"),
                samples.shown(place.sshd, 0.001, "ms"),
                off / samples.median(place.sshd),
                "",
                True,
            )
        )
    return figures


def bulk(place: Place, effort: Effort) -> list[Figure]:
    """Large transfers both ways."""
    from tests.bench.ssh_clients import Transfer
    from tests.bench.ssh_place import CIPHER, FILE, RANDOM_FILE

    size = effort.mib << 20
    noise = os.urandom(1 << 18)
    plans: list[tuple[Transfer, str | None]] = [
        (Transfer("down, text", size, FILE), CIPHER),
        (Transfer("down, random", size, RANDOM_FILE), CIPHER),
        (Transfer("up, zeros", size, content=bytes(1 << 18)), CIPHER),
        (Transfer("up, random", size, content=noise), CIPHER),
        (Transfer("down, terminal", effort.terminal_mib << 20, FILE, terminal=True), CIPHER),
        (Transfer("down, text", size, FILE), None),
        (Transfer("up, random", size, content=noise), None),
    ]
    figures = []
    taken = [Samples() for _ in plans]
    for number in range(effort.rounds):
        for (transfer, cipher), samples in zip(plans, taken, strict=True):
            # Without a cipher named, only what is compared with sshd.
            sides = place.sides if cipher else place.sides[:2]
            for side in _turn(sides, number):
                samples.add(side, transfer.rate(side, cipher=cipher))
                place.rest()
    for (transfer, cipher), samples in zip(plans, taken, strict=True):
        name = f"{transfer.name}, {transfer.size >> 20} MiB"
        figures += _rates(place, name, cipher, samples)
    return figures


def _rates(place: Place, name: str, cipher: str | None, samples: Samples) -> list[Figure]:
    ours = samples.median(place.recorded)
    shown = samples.shown(place.recorded, 1e6, "MB/s")
    ratio = ours / samples.median(place.sshd)
    floor = samples.shown(place.sshd, 1e6, "MB/s")
    name = f"{name}, {_cipher(cipher)}"
    least = TERMINAL if ", terminal," in name else BULK
    figures = [Figure(name, shown, floor, ratio, f">= {least}x", ratio >= least)]
    if cipher:
        off = samples.median(place.unrecorded)
        shown_off = samples.shown(place.unrecorded, 1e6, "MB/s")
        ratio = ours / off
        target = f">= {RECORDING}x"
        name = "  recording on, against off"
        figures.append(Figure(name, shown, shown_off, ratio, target, ratio >= RECORDING))
        figures.append(Figure(OFF, shown_off, floor, off / samples.median(place.sshd), "", True))
    return figures


def echo(place: Place, effort: Effort) -> list[Figure]:
    """A key and its echo: one session for each way in, open all the time, keys in turn."""
    from tests.bench.ssh_clients import Keyboard, client

    samples = Samples()
    with ExitStack() as stack:
        keyboards = {}
        for side in place.sides:
            process = stack.enter_context(client(side, "-tt", Keyboard.SCRIPT))
            keyboards[side.name] = Keyboard(process)
        for number in range(effort.keys + _WARM_KEYS):
            for side in _turn(place.sides, number):
                taken = keyboards[side.name].press(b"x")
                if number >= _WARM_KEYS:
                    samples.add(side, taken)
            time.sleep(_PAUSE_SECONDS)
    place.rest()
    p99 = {side.name: samples.percentile(side, 99) for side in place.sides}
    more = p99["recorded"] - p99["sshd"]
    on, off = samples.median(place.recorded), samples.median(place.unrecorded)
    return [
        Figure(
            f"echo of a key, p99 of {effort.keys}",
            _fine(p99["recorded"]),
            _fine(p99["sshd"]),
            p99["recorded"] / p99["sshd"],
            f"<= +{ECHO_SECONDS * 1000:.0f} ms",
            more <= ECHO_SECONDS,
        ),
        Figure(
            f"echo of a key, p50 of {effort.keys}",
            _fine(on),
            _fine(samples.median(place.sshd)),
            on / samples.median(place.sshd),
            "",
            True,
        ),
        Figure(
            "  recording on, against off (p50, speed)",
            f"{_fine(on)}, p99 {_fine(p99['recorded'])}",
            f"{_fine(off)}, p99 {_fine(p99['unrecorded'])}",
            off / on,
            f">= {RECORDING}x",
            off / on >= RECORDING,
        ),
        Figure(
            f"{OFF} (p50)",
            f"{_fine(off)}, p99 {_fine(p99['unrecorded'])}",
            f"{_fine(samples.median(place.sshd))}, p99 {_fine(p99['sshd'])}",
            off / samples.median(place.sshd),
            "",
            True,
        ),
    ]


def idle(place: Place, effort: Effort) -> list[Figure]:
    """Sessions that nobody uses."""
    from tests.bench.ssh_idle import CONTAINER_CPU, CONTAINER_MIB, LIMIT_MIB, measure

    cost = measure(place, effort.sessions)
    cpu_each = cost.container_cpu / cost.sessions
    return [
        Figure(
            f"memory of the gateway for each of {cost.sessions} idle sessions",
            f"{cost.gateway:.2f} MiB",
            f"{cost.gateway_before:.0f} MiB without any",
            None,
            f"<= {LIMIT_MIB:.0f} MiB",
            cost.gateway <= LIMIT_MIB,
        ),
        Figure(
            "  memory in the container, each",
            f"{cost.container:.1f} MiB in {cost.processes:.1f} processes",
            f"{cost.sshd:.1f} MiB",
            cost.container / cost.sshd,
            f"<= {CONTAINER_MIB:.0f} MiB",
            cost.container <= CONTAINER_MIB,
        ),
        Figure(
            "  processor time in the container while idle, each",
            f"{cpu_each:.3f} % of a core",
            "",
            None,
            f"<= {CONTAINER_CPU} %",
            cpu_each <= CONTAINER_CPU,
        ),
        Figure(
            "  memory of the run worker, each", f"{cost.run_worker:.2f} MiB", "", None, "", True
        ),
        Figure(
            "  processor time of the gateway while all are idle",
            f"{cost.gateway_cpu:.1f} %",
            "",
            None,
            "",
            True,
        ),
    ]


def _turn(sides: tuple[Side, ...], number: int) -> Iterable[Side]:
    """Let each of them be first as often as the others."""
    first = number % len(sides)
    return sides[first:] + sides[:first]


def _cipher(cipher: str | None) -> str:
    return "default cipher" if cipher is None else cipher.partition("@")[0]


def _fine(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


MEASURES: dict[str, Callable[[Place, Effort], list[Figure]]] = {
    "logins": logins,
    "bulk": bulk,
    "echo": echo,
    "idle": idle,
}


def main() -> int:
    """Measure and print the table."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    import django

    django.setup()
    from tests.bench.database import in_own_database
    from tests.bench.ssh_place import place

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*MEASURES, []], help="measure these only")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, rough figures")
    options = parser.parse_args()
    effort = QUICK if options.quick else Effort()
    # SIGTERM ends it as Ctrl+C does: everything that was started is taken down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def measure() -> Iterator[Figure]:
        with place(effort.mib << 20) as found:
            for name in options.only or list(MEASURES):
                yield from MEASURES[name](found, effort)

    return report({"SSH": in_own_database(measure)})


if __name__ == "__main__":
    sys.exit(main())
