"""``make bench-data-plane``: streams, files, previews, execs against their floors. Not a test."""

from __future__ import annotations

import argparse
import os
import sys


def main() -> int:
    """Measure and print the table."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    import django

    django.setup()
    from tests.bench import exec as execs
    from tests.bench import files, preview_rate, stream_lag, stream_readers
    from tests.bench.database import in_own_database
    from tests.bench.figures import Measure, report

    measures: dict[str, Measure] = {
        "stream-readers": stream_readers.measure,
        "stream-lag": stream_lag.measure,
        "files": lambda: files.measure(quick=options.quick),
        "preview-rate": preview_rate.measure,
        "exec": execs.measure,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*measures, []], help="measure these only")
    parser.add_argument("--quick", action="store_true", help="without the file of 5 GiB")
    options = parser.parse_args()
    chosen = options.only or list(measures)
    return report({name: in_own_database(measures[name]) for name in chosen})


if __name__ == "__main__":
    sys.exit(main())
