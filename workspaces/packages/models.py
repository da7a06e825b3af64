"""What is known of each distribution's packages, and what the operator says instead.

An index is written by :mod:`.sync` alone, in one transaction for each reading: a reader sees the
one before or the one after, never half of it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.functions import Reverse

from workspaces.families import FAMILIES

from .names import is_folded_name, is_package_name

NAME_MAX_LENGTH = 255
MAX_OVERRIDE_PACKAGES = 20


class PackageIndex(models.Model):
    """The index of one distribution: when it was last read, and how reading it went since.

    The row appears with the first try. ``read_at`` is null until one has succeeded; a try that
    fails counts ``failures`` up and leaves what was read before as it is.
    """

    family = models.CharField(primary_key=True, max_length=16)
    architecture = models.CharField(
        max_length=32, blank=True, help_text="As the distribution calls it, such as amd64."
    )
    base_image = models.CharField(max_length=512, blank=True, help_text="Base image of the index.")
    packages = models.PositiveIntegerField(default=0)
    read_at = models.DateTimeField(null=True, blank=True)
    requested_at = models.DateTimeField(
        null=True, blank=True, help_text="An operator wants it read again, whatever its age."
    )
    tried_at = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0, help_text="Failures since it was last read.")
    error = models.TextField(blank=True, help_text="Why the last attempt failed.")

    class Meta:
        verbose_name_plural = "package indexes"

    def __str__(self) -> str:
        return f"Packages of {self.family}"

    def expires_at(self, ttl: timedelta) -> datetime | None:
        """Return when this index is stale; None when it was never read."""
        return None if self.read_at is None else self.read_at + ttl


class Package(models.Model):
    """One name that a distribution's package manager can install.

    A package of that name has ``versions``, first the one that is installed when none is asked for.
    A virtual one has none; ``providers`` are the packages that stand for it.
    """

    id = models.BigAutoField(primary_key=True)
    family = models.CharField(max_length=16)
    name = models.CharField(max_length=NAME_MAX_LENGTH, db_collation="C")
    folded = models.CharField(
        max_length=NAME_MAX_LENGTH, db_collation="C", help_text="The name in lower case."
    )
    squeezed = models.CharField(
        max_length=NAME_MAX_LENGTH,
        db_collation="C",
        help_text="The folded name with only a-z, 0-9 and + left.",
    )
    size = models.PositiveSmallIntegerField(help_text="Characters of the squeezed name.")
    stem = models.CharField(
        max_length=NAME_MAX_LENGTH,
        db_collation="C",
        help_text="The folded name without lib, python3-, -dev, a number at its end and the like.",
    )
    repository = models.CharField(max_length=128, blank=True)
    versions = ArrayField(models.CharField(max_length=255), default=list)
    providers = ArrayField(models.CharField(max_length=NAME_MAX_LENGTH), default=list)
    virtual = models.BooleanField(default=False)

    class Meta:
        indexes = [
            # In the order of a prefix search: names that begin like the one asked for.
            models.Index(fields=["family", "folded"], name="package_folded"),
            # A name one slip away shares its first or its last half and nearly its length.
            models.Index(
                fields=["family", "size", "squeezed"],
                name="package_beginning",
                condition=Q(virtual=False),
            ),
            models.Index(
                F("family"),
                F("size"),
                Func(Reverse("squeezed"), template='%(expressions)s COLLATE "C"'),
                name="package_end",
                condition=Q(virtual=False),
            ),
            models.Index(
                fields=["family", "stem"], name="package_stem", condition=Q(virtual=False)
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["family", "name"], name="package_family_name"),
            models.CheckConstraint(
                condition=Q(virtual=False, versions__len__gt=0, providers__len=0)
                | Q(virtual=True, versions__len=0, providers__len__gt=0),
                name="package_versions_or_providers",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.family})"


class PackageOverride(models.Model):
    """What an operator says a name means, before every table and index.

    Without a family it counts for all that have no override of their own; without packages the name
    is refused.
    """

    id = models.BigAutoField(primary_key=True)
    family = models.CharField(
        max_length=16,
        blank=True,
        choices=[(name, family.title) for name, family in FAMILIES.items()],
        help_text="Empty: every family that has no override of its own for this name.",
    )
    name = models.CharField(
        max_length=NAME_MAX_LENGTH, help_text="What people ask for; case is ignored."
    )
    packages = ArrayField(
        models.CharField(max_length=NAME_MAX_LENGTH),
        default=list,
        blank=True,
        size=MAX_OVERRIDE_PACKAGES,
        help_text="What is installed, as the distribution calls it, separated by commas. Empty: "
        "the name is refused.",
    )
    note = models.CharField(
        max_length=500,
        blank=True,
        help_text="The reason, which is shown to clients that ask for a refused name.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["name", "family"],
                name="override_name_family",
                violation_error_message="There is an override of this name for this family.",
            ),
            models.CheckConstraint(condition=~Q(name=""), name="override_has_name"),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.family or 'every family'})"

    def clean(self) -> None:
        """Fold the name, and refuse packages that the family's package manager could not take."""
        self.name = self.name.strip().lower()
        if not is_folded_name(self.name):
            raise ValidationError({"name": "Nobody could ask for a package of this name."})
        families = [FAMILIES[self.family]] if self.family in FAMILIES else list(FAMILIES.values())
        faults = [
            f"'{package}' is not a valid package name on {family.title}."
            for package in self.packages
            for family in families
            if not is_package_name(package, family)
        ]
        if faults:
            raise ValidationError({"packages": faults})
        self.packages = list(dict.fromkeys(self.packages))
