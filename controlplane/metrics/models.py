"""What all processes have counted since the first day, and samples of each minute of the last."""

from __future__ import annotations

from django.db import models


class Count(models.Model):
    """One number of one counter: a counter's own, or a bucket or the sum of a histogram.

    Processes count in memory and add to these rows every few seconds (``metrics.services.flush``),
    so the numbers are those of all processes on all machines and survive every restart. What a
    process counted in its last seconds is lost when it is killed.
    """

    pk = models.CompositePrimaryKey("family", "labels", "part")
    family = models.CharField(max_length=80)
    labels = models.CharField(
        max_length=500, help_text="The labels' values in the order of the family, as JSON."
    )
    part = models.CharField(
        max_length=16, help_text="For a histogram the bucket's bound or `sum`, otherwise empty."
    )
    value = models.FloatField()

    class Meta:
        db_table = "metric_count"

    def __str__(self) -> str:
        return f"{self.family}{self.labels} {self.part}"


class MinuteSample(models.Model):
    """What was measured in one minute, of the whole installation or of one engine's machine."""

    pk = models.CompositePrimaryKey("minute", "source")
    minute = models.DateTimeField(help_text="When the minute began.")
    source = models.CharField(
        max_length=128, blank=True, help_text="The engine; empty: the installation as a whole."
    )
    values = models.JSONField(help_text="By name: a number, a list of numbers, or numbers by name.")

    class Meta:
        db_table = "metric_minute_sample"

    def __str__(self) -> str:
        return f"{self.minute:%Y-%m-%d %H:%M} {self.source}".rstrip()
