"""Ubuntu: Debian's tools and, for everything that a blueprint usually names, Debian's names."""

from __future__ import annotations

from dataclasses import replace

from .debian import DEBIAN

UBUNTU = replace(DEBIAN, name="ubuntu", title="Ubuntu")
