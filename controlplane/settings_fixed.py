"""Settings that are the same in every installation: what the program is made of.

``controlplane.settings`` has them all, and adds what the environment says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

BASE_DIR = Path(__file__).resolve().parent.parent
SVC_RELEASE = "0.4.0"

# ---------------------------------------------------------------- Django
INSTALLED_APPS = [
    # Before the admin, whose templates it adds to.
    "controlplane.apps.ControlPlaneConfig",
    "controlplane.apps.AdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "corsheaders",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "controlplane.metrics.apps.MetricsConfig",
    "controlplane.work.apps.WorkConfig",
    "controlplane.logins.apps.LoginsConfig",
    "accounts.apps.AccountsConfig",
    "workspaces.apps.WorkspacesConfig",
    "runs.apps.RunsConfig",
    "registries.apps.RegistriesConfig",
    "scm.apps.ScmConfig",
    "builds.apps.BuildsConfig",
    "e2bfacade.apps.E2BFacadeConfig",
]
MIDDLEWARE = [
    "controlplane.metrics.latency.LatencyMiddleware",
    "controlplane.http.middleware.RequestIdMiddleware",
    "controlplane.http.middleware.ContentSecurityPolicyMiddleware",
    "controlplane.http.middleware.CanonicalLinkMiddleware",
    "controlplane.http.origins.HostMiddleware",
    "controlplane.http.admin_port.AdminPortMiddleware",
    "controlplane.http.middleware.PreflightMiddleware",
    "controlplane.http.origins.OriginMiddleware",
    "controlplane.http.identity.OwnerIdentityMiddleware",
    "controlplane.http.middleware.BodyLimitMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "controlplane.urls"
WSGI_APPLICATION = "controlplane.wsgi.application"
APPEND_SLASH = False
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
FORMAT_MODULE_PATH = ["controlplane.formats"]
USE_I18N = False
STATIC_URL = "static/"
# Static files (the admin's and the docs') are served from the installed packages: there is nothing
# to collect, and no folder that has to exist.
WHITENOISE_USE_FINDERS = True
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
X_FRAME_OPTIONS = "DENY"
LOGGING_CONFIG = None

# ---------------------------------------------------------------- CORS
CORS_ALLOW_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CORS_ALLOW_HEADERS = (
    "content-type",
    "authorization",
    "idempotency-key",
    "last-event-id",
    "x-request-id",
    "x-svc-gateway-token",
)
CORS_EXPOSE_HEADERS = (
    "location",
    "x-request-id",
    "idempotency-replayed",
    "x-missing-ranges",
    "x-missing-count",
    "x-stream-complete",
)
CORS_PREFLIGHT_MAX_AGE = 86_400
CORS_URLS_REGEX = r"^/(v1/.*|healthz|readyz|openapi\.json|)$"

# ---------------------------------------------------------------- the API
API_DESCRIPTION = """\
Development and agent workspaces, built from a blueprint, published to your registry, run on your
machines.

**Owners.** Nobody is authenticated: callers name the owner they act for, with `ownerUserId` (or
`userId`) in the body or the query, whatever the method; a `GET` or `DELETE` takes a body with the
owner and nothing else. What belongs to another owner is answered as if it did not
exist. Requests by id may leave the owner out, unless the installation requires it.

**Problems.** Every failure has one body, `application/problem+json`: `code` is for programs,
`detail` for people, and `errors` lists every fault with its place.

**Lists** are newest first: `limit` items and, when there are more, a `nextCursor` for the next
page. Rows added in the meantime do not change later pages.

**Requests.** Your `x-request-id`, or a generated one, is in every answer.
Bodies are JSON of at most 1 MiB unless the operator says otherwise; unknown members are refused,
and a member that is null counts as absent.
"""
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "UNAUTHENTICATED_USER": None,
    "DEFAULT_PARSER_CLASSES": ["controlplane.http.parsers.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "controlplane.http.negotiation.JsonOnly",
    "DEFAULT_METADATA_CLASS": "controlplane.http.negotiation.NoMetadata",
    "DEFAULT_SCHEMA_CLASS": "controlplane.http.openapi.ControlPlaneSchema",
    "EXCEPTION_HANDLER": "controlplane.http.problems.exception_handler",
    "DATETIME_FORMAT": "iso-8601",
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Control plane",
    "VERSION": SVC_RELEASE,
    "DESCRIPTION": API_DESCRIPTION,
    "LICENSE": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {
        "deepLinking": True,
        "displayRequestDuration": True,
        "defaultModelsExpandDepth": 0,
        "validatorUrl": None,
    },
    "COMPONENT_SPLIT_REQUEST": True,
    "COMPONENT_SPLIT_PATCH": False,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "SCHEMA_PATH_PREFIX": "/v1",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "controlplane.http.openapi.add_shared_parts",
        "workspaces.openapi.add_blueprint",
    ],
    "ENUM_NAME_OVERRIDES": {
        "SurfacedStatus": "workspaces.status.SurfacedStatus",
        "WorkspaceStatus": "workspaces.status.WORKSPACE_STATUSES",
        "RuntimeStatus": "workspaces.models.RuntimeInstance.Status",
        "Relation": "workspaces.models.Sandbox.Relation",
        "RestartRelation": "workspaces.serializers.RESTART_RELATIONS",
        "TriggerType": "workspaces.models.Attempt.TriggerType",
        "EventType": "workspaces.models.WorkspaceEvent.Type",
        "AccountProvider": "accounts.providers.Provider",
        "AccountKind": "accounts.providers.Kind",
        "AccountStatus": "accounts.models.ConnectedAccount.Status",
        "ProfileStatus": "accounts.models.Profile.Status",
        "DeliveryStatus": "scm.models.WebhookDelivery.Status",
        "SourceProvider": "workspaces.serializers.SOURCE_PROVIDERS",
        "LivenessStatus": ["ok"],
        "ReadinessStatus": "controlplane.health.READINESS_STATUSES",
        "StartedStatus": "workspaces.serializers.STARTED_STATUSES",
        "WarningCode": "workspaces.serializers.WARNING_CODES",
        "InputSignal": "runs.exec.serializers.SIGNALS",
        "RunStatus": "runs.models.Run.Status",
        "RunMode": "runs.models.Run.Mode",
        "ClientRunMode": "runs.serializers.CLIENT_MODES",
        "StreamName": "runs.serializers.STREAMS",
        "ToldStreamName": "runs.serializers.TOLD_STREAMS",
        "EventKind": "runs.serializers.TIMELINE_KINDS",
        "LossKind": "runs.models.RunLoss.Kind",
        "ReportedChange": "runs.serializers.REPORTED_CHANGES",
        "RecordedChange": "runs.serializers.RECORDED_CHANGES",
        "SshKeyAlgorithm": "accounts.serializers.KEY_ALGORITHMS",
        "InstallationStatus": "scm.models.Installation.Status",
        "InstallationAccountType": "scm.models.Installation.AccountType",
        "RepositorySelection": "scm.models.Installation.RepositorySelection",
        "ExportFormat": "runs.serializers.EXPORT_FORMATS",
        "PackageStatus": "workspaces.packages.serializers.STATUSES",
        "PackageReason": "workspaces.packages.serializers.REASONS",
        "PackageSource": "workspaces.packages.serializers.SOURCES",
        "PackageOrigin": "workspaces.packages.serializers.ORIGINS",
    },
    "TAGS": [
        {"name": "System", "description": "The installation and its state."},
        {"name": "Packages", "description": "Package names in the package index of a family."},
        {"name": "Workspaces", "description": "Environments built from a blueprint."},
        {
            "name": "Files",
            "description": "The files of a running workspace, as its user sees them.",
        },
        {"name": "Ports", "description": "Ports that listen in a workspace."},
        {
            "name": "Sandboxes",
            "description": "Requests to start a workspace: each builds an image, publishes and "
            "launches it.",
        },
        {"name": "SSH keys", "description": "Public keys that people enter workspaces with."},
        {
            "name": "Connected accounts",
            "description": "Accounts elsewhere that workspaces use; their secrets are sealed.",
        },
        {"name": "Profiles", "description": "Which connected accounts a workspace gets."},
        {
            "name": "Runs",
            "description": "Runs in workspaces, and the records of what happened.",
        },
        {
            "name": "Registries",
            "description": "The registry that images are published to, as it is now.",
        },
        {
            "name": "Source hosting",
            "description": "Installations of the provider app, which give access to repositories.",
        },
    ],
}
