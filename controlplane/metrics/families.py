"""Everything that is counted, by name: the counters and histograms of ``GET /metrics``.

Counting costs a dictionary access in memory (``metrics.counting``) and never fails, so any line of
code may do it. Labels take values from small sets that are ours, never text that a client sends.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.metrics import counting

SUM = "sum"
LARGEST = "+Inf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One name with its labels; ``known`` are the values that are shown before they occur."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    known: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def values(self, given: Mapping[str, str]) -> tuple[str, ...]:
        """Return the labels' values in order; ``KeyError`` for one that is missing."""
        return tuple(given[label] for label in self.labels)

    def expected(self) -> list[tuple[str, ...]]:
        """Return the combinations of values that are shown as 0 until they occur."""
        if set(self.known) != set(self.labels):
            return []
        return list(itertools.product(*(self.known[label] for label in self.labels)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter(Family):
    """A number that only rises."""

    def count(self, amount: float = 1, /, **labels: str) -> None:
        """Add ``amount``."""
        counting.add(self.name, self.values(labels), "", amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram(Family):
    """How often something took how long; ``bounds`` are the upper bounds of its buckets."""

    bounds: tuple[float, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the buckets, the unlimited one last."""
        return (*(f"{bound:g}" for bound in self.bounds), LARGEST)

    def observe(self, value: float, **labels: str) -> None:
        """Count one that took ``value``."""
        values = self.values(labels)
        counting.add(self.name, values, self.parts[bisect_left(self.bounds, value)], 1)
        counting.add(self.name, values, SUM, value)


API_SECONDS = Histogram(
    name="svc_api_request_seconds",
    help="Time until the answer to a request began, by route template.",
    labels=("method", "route"),
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
API_ANSWERS = Counter(
    name="svc_api_answers_total",
    help="Answers of the API by route template and status.",
    labels=("method", "route", "status"),
)
BUILD_JOBS = Counter(
    name="svc_build_jobs_ended_total",
    help="Claimed build jobs by how their worker finished with them.",
    labels=("outcome",),
    known={"outcome": ("succeeded", "failed", "lost", "given-back")},
)
BUILD_PHASES = Histogram(
    name="svc_build_phase_seconds",
    help="Phases of build jobs by outcome; stopped: cancelled, or its worker was told to stop.",
    labels=("phase", "outcome"),
    known={
        "phase": ("fetch", "build", "push", "launch"),
        "outcome": ("succeeded", "failed", "stopped"),
    },
    bounds=(0.5, 1, 2.5, 5, 15, 30, 60, 120, 300, 600, 1800, 3600),
)
BUILDS_REUSED = Counter(
    name="svc_builds_reused_total", help="Builds that an image of the same plan made unnecessary."
)
LEASE_RENEWALS = Counter(
    name="svc_lease_renewals_total",
    help="Renewals of leases; lost: another worker has the work; failed: will be retried.",
    labels=("worker", "outcome"),
    known={"worker": ("build", "run"), "outcome": ("renewed", "lost", "failed")},
)
SWEEPS = Counter(
    name="svc_sweeps_total",
    help="Rounds of the workers' periodic tasks.",
    labels=("worker", "task", "outcome"),
)
FOUND_BY_SWEEPER = Counter(
    name="svc_found_by_sweeper_total",
    help="Jobs and runs that were found without their message, or without their worker.",
    labels=("worker",),
    known={"worker": ("build", "run")},
)
WARM_CLAIMS = Counter(
    name="svc_warm_claims_total",
    help="Starts that the warm pool could serve, by whether a container waited for them.",
    labels=("outcome",),
    known={"outcome": ("claimed", "empty")},
)
WARM_EVENTS = Counter(
    name="svc_warm_pool_events_total",
    help="Containers of the warm pool: ready, failed to start, lost while waiting, or retired.",
    labels=("outcome",),
    known={"outcome": ("ready", "failed", "lost", "retired")},
)
RECORD_EVENTS = Counter(name="svc_record_events_total", help="Events stored in records of runs.")
RECORD_BYTES = Counter(
    name="svc_record_bytes_total", help="Bytes of events stored in records of runs."
)
RECORD_BATCHES = Counter(
    name="svc_record_batches_total", help="Transactions in which events were stored."
)
RECORD_LOSSES = Counter(
    name="svc_record_losses_total",
    help="Spans that records say they do not hold.",
    labels=("kind",),
    known={"kind": ("dropped_event", "sequence_gap", "watch_overflow", "early_close")},
)
EGRESS_DECISIONS = Counter(
    name="svc_egress_decisions_total",
    help="Decisions of egress proxies that are in boot records, and those that came too late or "
    "could not be read.",
    labels=("outcome",),
    known={"outcome": ("stored", "lost")},
)
INGEST_LAG = Histogram(
    name="svc_record_ingest_lag_seconds",
    help="Age of the oldest event of a batch when it was stored, by the clock of its workspace.",
    bounds=(0.05, 0.1, 0.2, 0.3, 0.5, 1, 2.5, 5, 15, 60, 300),
)

FAMILIES: tuple[Counter | Histogram, ...] = (
    *(API_SECONDS, API_ANSWERS),
    *(BUILD_JOBS, BUILD_PHASES, BUILDS_REUSED, LEASE_RENEWALS, SWEEPS, FOUND_BY_SWEEPER),
    *(WARM_CLAIMS, WARM_EVENTS),
    *(RECORD_EVENTS, RECORD_BYTES, RECORD_BATCHES, RECORD_LOSSES, INGEST_LAG),
    EGRESS_DECISIONS,
)
