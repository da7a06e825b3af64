"""Counts and gauges in the text format that Prometheus reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric

from controlplane.metrics.counting import Key
from controlplane.metrics.families import FAMILIES, SUM, Counter, Histogram
from controlplane.metrics.gauges import Gauge

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class _Collected:
    """What prometheus_client asks for metrics."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def exposition(gauges: Sequence[Gauge], counts: Mapping[Key, float]) -> bytes:
    """Return the page: the gauges, then every family with what was counted."""
    return generate_latest(_Collected([*_measured(gauges), *_counted(counts)]))


def _measured(gauges: Sequence[Gauge]) -> Iterator[Metric]:
    for gauge in gauges:
        metric = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)
        for values, value in gauge.values.items():
            metric.add_metric(values, value)
        yield metric


def _counted(counts: Mapping[Key, float]) -> Iterator[Metric]:
    by_family: dict[str, dict[tuple[str, ...], dict[str, float]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for (name, labels, part), value in counts.items():
        by_family[name][labels][part] = value
    for family in FAMILIES:
        series: dict[tuple[str, ...], dict[str, float]] = {
            labels: {} for labels in family.expected()
        }
        # An earlier release may have had other labels.
        series.update(
            (labels, parts)
            for labels, parts in by_family[family.name].items()
            if len(labels) == len(family.labels)
        )
        yield (
            _histogram(family, series)
            if isinstance(family, Histogram)
            else _counter(family, series)
        )


def _counter(family: Counter, series: Mapping[tuple[str, ...], Mapping[str, float]]) -> Metric:
    metric = CounterMetricFamily(family.name, family.help, labels=family.labels)
    for labels, parts in series.items():
        metric.add_metric(labels, parts.get("", 0.0))
    return metric


def _histogram(family: Histogram, series: Mapping[tuple[str, ...], Mapping[str, float]]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    for labels, parts in series.items():
        buckets, total = [], 0.0
        for part in family.parts:
            total += parts.get(part, 0.0)
            buckets.append((part, total))
        metric.add_metric(labels, buckets, parts.get(SUM, 0.0))
    return metric
