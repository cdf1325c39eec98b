"""The Helm chart and the KServe example: values, settings and probes are those that there are; what Helm makes of them
follows Kubernetes' schemas (`make helm-test`, which installs Helm's library and the schemas into build/helm)."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.support.helm import LIBRARY, available, render

from tensorpost_server.settings import Settings, setting_variable

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/tensorpost"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
KSERVE: dict[str, Any] = yaml.safe_load((ROOT / "deploy/kserve/inferenceservice.yaml").read_text())
TEMPLATES = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
OPEN = {"allowAnonymous": True}
EVERYTHING = {
    "keysSecret": "tensorpost-keys",
    "tlsSecret": "tensorpost-tls",
    "gpus": 1,
    "settings": {"max_body_bytes": 1 << 30, "caller_share": 0.5, "backend": "cuda", "shutdown_seconds": 60},
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "keySecret": "metrics", "labels": {"release": "prometheus"}},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tensors"},
    "image": {"pullSecrets": ["registry"]},
    "podLabels": {"team": "a"},
    "podAnnotations": {"note": "b"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "nodeSelector": {"kind": "gpu"},
}
helm = pytest.mark.skipif(not available(), reason="needs Helm: make helm-test")


def paths(values: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield from paths(value, f"{before}{name}.") if isinstance(value, dict) and value else [before + name]


def test_templates_use_every_value_and_no_other() -> None:
    known = set(paths(VALUES))
    used = set(re.findall(r"\.Values\.([A-Za-z._]+)", TEMPLATES))

    assert {name for name in used if not any(path == name or path.startswith(f"{name}.") for path in known)} == {
        "settings.shutdown_seconds"
    }
    assert {path for path in known if not any(path == name or path.startswith(f"{name}.") for name in used)} == set()


def test_defaults_follow_the_schema_and_mistakes_do_not() -> None:
    validator = jsonschema.Draft7Validator(SCHEMA)

    validator.validate(VALUES)
    validator.validate(EVERYTHING)
    for wrong in (
        {"replica": 1},
        {"settings": {"port": 1}},
        {"settings": {"Max": 1}},
        {"gpus": "1"},
        {"service": {"x": 1}},
    ):
        assert not validator.is_valid(wrong), wrong


def test_the_variables_of_chart_and_kserve_are_settings() -> None:
    known = {setting_variable(name) for name in Settings.model_fields}
    (container,) = KSERVE["spec"]["predictor"]["containers"]

    assert set(re.findall(r"name: (TENSORPOST_[A-Z_]+[A-Z])\b", TEMPLATES)) <= known
    assert {entry["name"] for entry in container["env"]} <= known
    assert set(re.findall(r"path: (/v2/[a-z/]+)", TEMPLATES)) == {"/v2/health/live", "/v2/health/ready"}
    assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness")} == {"/v2/health/ready"}


def test_the_ray_service_says_what_the_application_takes() -> None:
    service = yaml.safe_load((ROOT / "deploy/ray/rayservice.yaml").read_text())
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    source = (ROOT / "app/tensorpost_server/ray.py").read_text()  # Ray, which it imports, may not be installed
    (arguments,) = [
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Arguments"
    ]
    known = {str(ast.unparse(field.target)) for field in arguments.body if isinstance(field, ast.AnnAssign)}

    assert application["import_path"] == "tensorpost_server.ray:application"
    assert set(application["args"]) <= known
    assert set(application["args"]["settings"]) <= set(Settings.model_fields)
    cluster = service["spec"]["rayClusterConfig"]
    head = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]
    (workers,) = cluster["workerGroupSpecs"]
    assert cluster["enableInTreeAutoscaling"]
    (cpus,) = {each["resources"]["requests"]["cpu"] for each in workers["template"]["spec"]["containers"]}
    room = workers["maxReplicas"] * (int(cpus) // application["args"]["cpus"])
    assert room >= application["args"]["most_replicas"]
    variables = dict(re.findall(r'^os\.environ\.setdefault\("(\w+)", "(\d+)"\)', source, re.M))
    for container in (head, *workers["template"]["spec"]["containers"]):
        assert {entry["name"]: entry["value"] for entry in container["env"]} == variables


@helm
def test_helm_refuses_an_open_server_and_misspelt_values() -> None:
    with pytest.raises(ValueError, match="anybody in the cluster could call"):
        render(CHART, {})
    with pytest.raises(ValueError, match="replica"):
        render(CHART, {**OPEN, "replica": 1})


@helm
@pytest.mark.parametrize(
    "values", [OPEN, EVERYTHING, {**OPEN, "gpus": 2, "resources": {}}], ids=["open", "all", "gpus"]
)
def test_what_helm_renders_follows_kubernetes_schemas(values: dict[str, Any]) -> None:
    sys.path.append(str(LIBRARY.parents[3]))
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs the schemas: make helm-test")
    objects = render(CHART, values)

    for found in [*objects, kserve_pod()]:
        if found["kind"] != "ServiceMonitor":  # no object of Kubernetes itself
            kubernetes_validate.validate(found, "1.34", strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**objects[1], "spce": {}}, "1.34", strict=True)


@helm
def test_what_the_values_ask_for_is_there() -> None:
    small = {found["kind"]: found for found in render(CHART, OPEN)}
    objects = {found["kind"]: found for found in render(CHART, EVERYTHING)}
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}

    assert sorted(small) == ["Deployment", "PodDisruptionBudget", "Service"]
    assert small["Deployment"]["spec"]["replicas"] == 2
    assert small["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"] == "tensorpost:cpu"
    assert {"HorizontalPodAutoscaler", "Ingress", "ServiceMonitor"} <= set(objects)
    assert "replicas" not in objects["Deployment"]["spec"], "the autoscaler's own"
    assert container["image"] == "tensorpost:cuda"
    assert container["resources"]["limits"] == {"memory": "4Gi", "nvidia.com/gpu": 1}
    assert environment["TENSORPOST_MAX_BODY_BYTES"] == "1073741824"
    assert environment["TENSORPOST_CALLER_SHARE"] == "0.5"
    assert "TENSORPOST_ALLOW_ANONYMOUS" not in environment
    assert pod["terminationGracePeriodSeconds"] == 75
    assert pod["enableServiceLinks"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert environment["TENSORPOST_KEYS_FILE"].startswith(mounted["keys"] + "/")
    assert environment["TENSORPOST_TLS_KEY"].startswith(mounted["tls"] + "/")
    selector = objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
    assert selector <= objects["Service"]["metadata"]["labels"].items()
    job = objects["Service"]["metadata"]["labels"][objects["ServiceMonitor"]["spec"]["jobLabel"]]
    assert f'up{{job="{job}"}}' in (ROOT / "deploy" / "grafana" / "alerts.yaml").read_text()


def kserve_pod() -> dict[str, Any]:
    """The containers and volumes of the KServe example, as the Pod that KServe makes of them."""
    predictor = KSERVE["spec"]["predictor"]
    spec = {name: predictor[name] for name in ("containers", "volumes")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
