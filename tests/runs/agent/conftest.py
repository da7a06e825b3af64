"""Tests that need another account run where there may be one."""

from __future__ import annotations

import os

collect_ignore = [] if os.geteuid() == 0 else ["test_as_root.py"]
