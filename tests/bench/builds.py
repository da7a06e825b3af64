"""``make bench-builds``: the build path against its floors, as ratios of one run. Not a test."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable


def main() -> int:
    """Measure and print the table; 1 when a figure misses its target."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    import django

    django.setup()
    from tests.bench import empty_jobs, served
    from tests.bench.database import bench_database
    from tests.bench.figures import Figure, table

    measures: dict[str, Callable[[], list[Figure]]] = {
        "jobs": lambda: [empty_jobs.measure()],
        "served": served.measure,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*measures, []], help="measure these only")
    chosen = parser.parse_args().only or list(measures)
    figures: list[Figure] = []
    for name in chosen:
        with bench_database():
            figures += measures[name]()
    sys.stdout.write(table(figures) + "\n")
    return int(not all(figure.met for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
