"""The Django app ``metrics``, the one part of the kernel that has a table."""

from django.apps import AppConfig


class MetricsConfig(AppConfig):
    """Registers the app with Django."""

    name = "controlplane.metrics"
    label = "metrics"
    verbose_name = "Metrics"
