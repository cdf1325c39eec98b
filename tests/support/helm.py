"""Renders a chart by Helm: by the command where it is installed, else by Helm's own library (`make helm-test`).

The library comes without the command `template`. It installs the chart into a stand-in for Kubernetes' API, which
refuses the record of the release and keeps what is in it: the manifests as they would have been applied.
"""

from __future__ import annotations

import base64
import ctypes
import gzip
import http.server
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["LIBRARY", "available", "render"]

LIBRARY = Path(__file__).parents[2] / "build/helm/helm_sdkpy/_lib/linux-amd64/libhelm_sdkpy.so"
_KINDS = {
    "v1": {"services": "Service", "secrets": "Secret"},
    "apps/v1": {"deployments": "Deployment"},
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "networking.k8s.io/v1": {"ingresses": "Ingress"},
    "monitoring.coreos.com/v1": {"servicemonitors": "ServiceMonitor"},
}


def available() -> bool:
    """Whether one of the two is here."""
    return shutil.which("helm") is not None or LIBRARY.exists()


def render(chart: Path, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objects that the chart makes with these values.

    Raises:
        ValueError: Helm refuses them; the message is its own.
    """
    text = _by_command(chart, values) if shutil.which("helm") else _by_library(chart, values)
    return [document for document in yaml.safe_load_all(text) if document]


def _by_command(chart: Path, values: Mapping[str, Any]) -> str:
    command = ["helm", "template", "demo", str(chart), "--values", "-", "--api-versions", "monitoring.coreos.com/v1"]
    done = subprocess.run(command, input=yaml.safe_dump(dict(values)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout


def _by_library(chart: Path, values: Mapping[str, Any]) -> str:
    library = ctypes.CDLL(str(LIBRARY))
    library.helm_sdkpy_last_error.restype = ctypes.c_char_p
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Recorder) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = Path(folder) / "config"
        config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "x", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }))  # fmt: skip
        handle, answer = ctypes.c_ulonglong(), ctypes.c_char_p()
        os.environ.setdefault("HOME", folder)
        _Recorder.releases.clear()
        name = ctypes.byref(handle)
        assert library.helm_sdkpy_config_create(b"default", str(config).encode(), None, None, name) == 0
        given = json.dumps(values).encode()
        library.helm_sdkpy_install(handle, b"demo", str(chart).encode(), given, None, None, ctypes.byref(answer))
        said: bytes = library.helm_sdkpy_last_error() or b""
        library.helm_sdkpy_config_destroy(handle)
        server.shutdown()
    if not _Recorder.releases:
        raise ValueError(said.decode())
    return _Recorder.releases[0]["manifest"]


class _Recorder(http.server.BaseHTTPRequestHandler):
    """As much of Kubernetes' API as an installation asks before it writes the first object."""

    releases: list[dict[str, Any]] = []  # noqa: RUF012 # of the one installation at a time

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        kind, _, group = path.strip("/").partition("/")
        if path == "/version":
            self._answer(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        elif path == "/api":
            self._answer(200, {"kind": "APIVersions", "versions": ["v1"]})
        elif path == "/apis":
            groups: list[dict[str, object]] = []
            for both in [known for known in _KINDS if "/" in known]:
                version = {"groupVersion": both, "version": both.partition("/")[2]}
                groups.append({"name": both.partition("/")[0], "versions": [version], "preferredVersion": version})
            self._answer(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        elif kind in ("api", "apis") and group in _KINDS:
            resources = [
                {"name": name, "singularName": "", "namespaced": True, "kind": found, "verbs": ["create", "get"]}
                for name, found in _KINDS[group].items()
            ]
            document = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources}
            self._answer(200, document)
        else:
            self._refuse(404, "NotFound")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        record = re.search(rb"H4sI[A-Za-z0-9+/=]+", body)  # gzip in base64, in a Secret as protobuf
        if record is not None:
            self.releases.append(json.loads(gzip.decompress(base64.b64decode(record[0]))))
        self._refuse(403, "Forbidden")

    def _refuse(self, status: int, reason: str) -> None:
        document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status}
        self._answer(status, document)

    def _answer(self, status: int, document: Mapping[str, object]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None: ...
