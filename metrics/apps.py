"""The Django app ``metrics``."""

from django.apps import AppConfig


class MetricsConfig(AppConfig):
    """Registers the app with Django."""

    name = "metrics"
    verbose_name = "Metrics"
