"""`agent runs`: the records that wait in this workspace, with their counters, as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict

from ..record.acks import read_acknowledged
from ..record.follow import measure
from ..record.repair import has_writer, run_ids
from ..record.segments import IDENTITY, SpoolDamaged, list_segments, open_folder, read_json, size_of


def show(root: str) -> int:
    """Print one object for each run that has a spool; a spool that cannot be read says why."""
    found = []
    for run_id in run_ids(root):
        try:
            found.append(describe(root, run_id))
        except FileNotFoundError:
            # Committed to its end and removed just now.
            continue
        except (OSError, KeyError, SpoolDamaged) as error:
            found.append({"runId": run_id, "error": str(error)})
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def describe(root: str, run_id: str) -> Dict[str, Any]:
    """What is known of one spool, without changing it."""
    path = os.path.join(root, run_id)
    directory = open_folder(path)
    try:
        identity = read_json(directory, IDENTITY)
        last, sealed = measure(directory)
        segments = list_segments(directory)
        return {
            "runId": run_id,
            "spoolId": identity["spoolId"],
            "mode": identity["mode"],
            "firstSequence": segments[0].first,
            "lastSequence": last,
            "acknowledgedSequence": read_acknowledged(directory),
            "sealed": sealed,
            "spoolBytes": sum(size_of(directory, segment.name) for segment in segments),
            "writerAlive": has_writer(path),
        }
    finally:
        os.close(directory)
