"""The distributions an image can be made of, one module of data each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from .alpine import ALPINE
from .arch import ARCH
from .debian import DEBIAN
from .family import OsFamily
from .fedora import FEDORA
from .ubuntu import UBUNTU

FAMILIES: Final[Mapping[str, OsFamily]] = MappingProxyType(
    {family.name: family for family in (DEBIAN, UBUNTU, FEDORA, ARCH, ALPINE)}
)

__all__ = ["FAMILIES", "OsFamily"]
