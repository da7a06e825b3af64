"""The Dockerfile: constant for a family, but for the operator's base image.

What a blueprint says travels in the copied files. The order is by how much blueprints share: the
base is the same for all, a harness for many, the rest belongs to one. The agent comes last, so that
another release of it replaces nothing else, and is compiled with the Python of the finished image.
Both builders of the engine (BuildKit of 20.10 and the classic one) read it, so it uses no mounts,
here-documents or ``--link``.
"""

from __future__ import annotations

from workspaces.families import OsFamily

INSTALL = "/usr/share/svc/install"
"""Where the files of the context's folder ``install`` are in the image."""

AGENT = "/usr/lib/svc/agent"

_TEMPLATE = """\
FROM {base_image}
USER root
WORKDIR /
ENV LANG=C.UTF-8

COPY extra-ca.crt install/trust.sh install/packages.sh install/base.list install/user.sh {install}/
RUN ["/bin/sh", "{install}/trust.sh", "{anchors}", "{certificates}"]
RUN ["/bin/sh", "{install}/packages.sh", "{install}/base.list"]
RUN ["/bin/sh", "{install}/user.sh"]
ENV NODE_EXTRA_CA_CERTS={certificates}
ENV REQUESTS_CA_BUNDLE={certificates}
ENV SSL_CERT_FILE={certificates}

COPY install/harness.list install/npm.list install/superfluous.list install/harness.sh {install}/
RUN ["/bin/sh", "{install}/packages.sh", "{install}/harness.list"]
RUN ["/bin/sh", "{install}/harness.sh"]

COPY install/packages.list {install}/
RUN ["/bin/sh", "{install}/packages.sh", "{install}/packages.list"]

COPY install/custom.sh install/custom-harness.bash {install}/
RUN ["/bin/sh", "{install}/custom.sh"]

COPY install/workspace.py install/workspace.json {install}/
RUN ["/usr/bin/python3", "-I", "{install}/workspace.py"]

ADD sources.tar /
COPY svc-agent {agent}
RUN ["{agent}", "compile"]
ENTRYPOINT ["{agent}", "boot"]
"""


def dockerfile(family: OsFamily, base_image: str) -> str:
    """Return the Dockerfile of a family on the operator's base image."""
    return _TEMPLATE.format(
        base_image=base_image,
        install=INSTALL,
        agent=AGENT,
        anchors=family.anchors,
        certificates=family.certificates,
    )
