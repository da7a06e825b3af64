"""The Django app ``registries``."""

from django.apps import AppConfig


class RegistriesConfig(AppConfig):
    """Registers the app with Django."""

    name = "registries"
    verbose_name = "Registries"

    def ready(self) -> None:
        """Have readiness ask the registry."""
        # Models cannot be imported before the apps are loaded.
        from controlplane.readiness import register

        register("registry", _ping)


def _ping() -> str:
    # Most processes never ask.
    from registries.services import ping_configured_registry

    return ping_configured_registry()
