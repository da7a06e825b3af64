"""What a run of the tests refuses to begin with."""

from __future__ import annotations

import pytest

from tests import tiers


def test_two_tests_of_one_id_are_refused() -> None:
    tiers.refuse_repeated_ids(["test_a.py::test", "test_b.py::test", "test_a.py::test[1]"])
    with pytest.raises(pytest.UsageError) as refused:
        tiers.refuse_repeated_ids(["test_a.py::test", "test_b.py::test", "test_a.py::test"])
    assert str(refused.value).endswith(": test_a.py::test (2 times)")
