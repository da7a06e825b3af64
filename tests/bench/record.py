"""``make bench-record``: the execution record against its floors, as ratios of one run. Not a test.

The figures and targets are those of the design: ingest, capture, reading, and how soon what was
written in a workspace can be read.
"""

from __future__ import annotations

import argparse
import os
import sys


def main() -> int:
    """Measure and print the table."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    import django

    django.setup()
    from tests.bench import record_capture, record_ingest, record_lag, record_reading
    from tests.bench.database import in_own_database
    from tests.bench.figures import Measure, report

    measures: dict[str, Measure] = {
        "ingest": record_ingest.measure,
        "capture": record_capture.measure,
        "reading": record_reading.measure,
        "lag": record_lag.measure,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*measures, []], help="measure these only")
    chosen = parser.parse_args().only or list(measures)
    return report({name: in_own_database(measures[name]) for name in chosen})


if __name__ == "__main__":
    sys.exit(main())
