"""``make bench-builds``: the build path against its floors, as ratios of one run. Not a test."""

from __future__ import annotations

import argparse
import os
import sys


def main() -> int:
    """Measure and print the table."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    import django

    django.setup()
    from tests.bench import empty_jobs, served
    from tests.bench.database import in_own_database
    from tests.bench.figures import Measure, report

    measures: dict[str, Measure] = {
        "jobs": lambda: [empty_jobs.measure()],
        "served": lambda: served.measure(3 if options.quick else served.BUILDS),
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*measures, []], help="measure these only")
    parser.add_argument("--quick", action="store_true", help="fewer images are built")
    options = parser.parse_args()
    chosen = options.only or list(measures)
    return report({name: in_own_database(measures[name]) for name in chosen})


if __name__ == "__main__":
    sys.exit(main())
