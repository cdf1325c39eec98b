"""Variables that Kubernetes makes for a Service named tensorpost, which look like settings and are none."""

from __future__ import annotations

import re

_NAMES = re.compile(
    r"TENSORPOST_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)"
)


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes made this variable for a Service whose name begins with `tensorpost`.

    It sets `TENSORPOST_PORT=tcp://10.0.0.1:8000`, `TENSORPOST_SERVICE_HOST`, `TENSORPOST_PORT_8000_TCP_ADDR` and others
    in every container of the namespace, unless the pod says `enableServiceLinks: false`.

    Source: Kubernetes, Service, section Environment variables.
    """
    name = name.upper()
    is_port = name.startswith("TENSORPOST_") and name.endswith("_PORT")
    return (is_port and value.partition("://")[0] in ("tcp", "udp", "sctp")) or _NAMES.fullmatch(name) is not None
