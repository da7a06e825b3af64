"""The measures of the structure stay within their limits."""

from __future__ import annotations

import pytest

from tests.architecture.measures import MEASURES, Measure


@pytest.mark.parametrize(
    "measure", [each for each in MEASURES if each.limit is not None], ids=lambda each: each.name
)
def test_a_measure_is_within_its_limit(measure: Measure) -> None:
    assert measure.limit is not None
    assert measure.count() <= measure.limit


def test_every_measure_counts_what_is_there() -> None:
    counted = {measure.name: measure.count() for measure in MEASURES}
    assert counted["lines of product code"] > 10_000
    assert counted["viewsets"] > 5
    assert counted["files in the largest flat folder"] > 5
    assert counted["JobRunner.run: files of builds it reaches"] > 5
