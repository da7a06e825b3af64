"""Resolving packages, against a bare indexed SELECT through Django.

Both are measured in the same run, in turns, on an index of Debian's size. The floor is Django's ORM
reading the one row of a package by its unique index; for the whole request it is a view that does
this and answers JSON, behind the same middleware. The p99 counts, so the queries are those that
cost most among them: virtual names, names that are nearly right, names that nobody has.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from statistics import median
from typing import Any

from django.conf import settings
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.test import Client, override_settings
from django.urls import path

from tests.bench.figures import Figure, percentile

PACKAGES = 64_000
VIRTUAL = 34_000
ROUNDS = 1_000
REQUESTS = 500
TARGET = 1.5
_SYLLABLES = (
    "lib",
    "gtk",
    "data",
    "core",
    "net",
    "perl",
    "ssl",
    "xml",
    "font",
    "java",
    "qt",
    "sql",
)

urlpatterns: list[Any] = []
"""Of the floor's requests; filled when they are measured."""


def measure() -> list[Figure]:
    """Return the figures of resolving; expects a database of the benchmark's own."""
    settings.ALLOWED_HOSTS = ["*"]
    names = _write_index()
    return [*_calls(names), *_requests(names)]


def _write_index() -> list[str]:
    """Write an index with names as long and as alike as Debian's; return its packages."""
    from workspaces.families import FAMILIES
    from workspaces.packages.index_store import replace_index
    from workspaces.packages.readers import Offer

    chance = random.Random(7)
    names = ["ripgrep", "nodejs", "npm", "neovim", "fd-find", "build-essential", "mawk", "gawk"]
    while len(names) < PACKAGES:
        words = chance.choices(_SYLLABLES, k=chance.randint(1, 3))
        names.append("-".join([*words, f"{chance.randrange(10**6):x}"]))
    unique = list(dict.fromkeys(names))
    provided = [[f"virtual-{n}"] if n < VIRTUAL else [] for n in range(len(unique))]
    provided[6] = provided[7] = ["awk"]
    offers = (
        Offer(name, f"1.{position % 7}-{position % 3}", "main", tuple(provided[position]))
        for position, name in enumerate(unique)
    )
    replace_index(FAMILIES["debian"], offers, architecture="amd64", base_image="bench/debian:1")
    return unique


def _queries(names: list[str]) -> dict[str, Callable[[int], str]]:
    """Return what is asked for in each round, by kind."""
    chance = random.Random(11)
    asked = [chance.choice(names) for _ in range(ROUNDS)]
    usual = ["rg", "node", "nvim", "fd", "build-essential"]

    def slipped(position: int) -> str:
        name = asked[position % ROUNDS]
        return name[:2] + name[3:] + "q"[: position % 2]

    return {
        "a package of the index": lambda n: asked[n % ROUNDS],
        "a usual name": lambda n: usual[n % len(usual)],
        "a virtual package": lambda n: f"virtual-{n % VIRTUAL}" if n % 2 else "awk",
        "a name that is nearly right": slipped,
        "a name that nobody has": lambda n: f"wholly-unheard-of-{n}",
    }


def _calls(names: list[str]) -> list[Figure]:
    from workspaces.models import Package
    from workspaces.packages.lookup import look_up

    def floor(name: str) -> None:
        assert Package.objects.get(family="debian", name=name).name == name

    def ours(query: str) -> None:
        assert look_up(query, "debian")["status"]

    return _compare("resolve", names, ours, floor, "a SELECT by the ORM", ROUNDS)


def _requests(names: list[str]) -> list[Figure]:
    from workspaces.models import Package

    def bare(request: HttpRequest) -> JsonResponse:
        package = Package.objects.get(family="debian", name=request.GET["query"])
        return JsonResponse({"name": package.name, "versions": package.versions})

    from controlplane import urls

    urlpatterns[:] = [path("bench/package", bare), *urls.urlpatterns]
    client = Client()

    def floor(name: str) -> None:
        assert client.get("/bench/package", {"query": name}).status_code == 200

    def ours(query: str) -> None:
        answer = client.get("/v1/packages/resolve", {"query": query, "targetOs": "debian"})
        assert answer.status_code == 200

    with override_settings(ROOT_URLCONF=__name__):
        return _compare("request", names, ours, floor, "a view that SELECTs", REQUESTS)


def _compare(
    what: str,
    names: list[str],
    ours: Callable[[str], None],
    floor: Callable[[str], None],
    beside: str,
    rounds: int,
) -> list[Figure]:
    kinds = _queries(names)
    floor_times: list[float] = []
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    with _quiet():
        for position in range(-50, rounds):
            for kind, query in kinds.items():
                _timed(floor, names[position % len(names)], floor_times, keep=position >= 0)
                _timed(ours, query(position % rounds), times[kind], keep=position >= 0)
    bound = percentile(floor_times, 99)
    figures = []
    for kind, measured in {**times, "all of these": list(chain(*times.values()))}.items():
        p99 = percentile(measured, 99)
        ratio = p99 / bound
        figures.append(
            Figure(
                f"{what}, p99: {kind}",
                f"{_short(p99)}, p50 {_short(median(measured))}",
                f"{_short(bound)}, p50 {_short(median(floor_times))} {beside}",
                ratio,
                f"<= {TARGET}x",
                ratio <= TARGET,
            )
        )
    return figures


def _timed(call: Callable[[str], None], word: str, into: list[float], *, keep: bool) -> None:
    start = time.perf_counter()
    call(word)
    taken = time.perf_counter() - start
    if keep:
        into.append(taken)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the collector out of single measurements; both sides make garbage."""
    connection.ensure_connection()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def main() -> int:
    """Measure and print the table."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    os.environ.setdefault("SVC_LOG_LEVEL", "ERROR")
    import django

    django.setup()
    from tests.bench.database import in_own_database
    from tests.bench.figures import report

    return report({"packages": in_own_database(measure)})


if __name__ == "__main__":
    sys.exit(main())
