"""docker-compose.yml follows the published schema, and every service of ours runs as the image means it.

schemas/compose-spec.json is the Compose Specification's, under the Apache License 2.0 (schemas/LICENSE.compose-spec).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import validators

from tensorpost_server.settings import Settings, setting_variable

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVERS = [name for name, service in SERVICES.items() if "healthcheck" in service]


def test_it_follows_the_compose_specification() -> None:
    schema = json.loads((Path(__file__).parent / "schemas" / "compose-spec.json").read_text("utf-8"))
    validator = validators.validator_for(schema)(schema)

    assert [f"{list(error.path)}: {error.message}" for error in validator.iter_errors(COMPOSE)] == []
    broken = {**COMPOSE, "services": {"x": {"image": "y", "port": ["1:1"]}}}
    assert not validator.is_valid(broken), "so it sees a misspelt member"


def test_without_a_profile_there_is_the_server_on_the_cpu_alone() -> None:
    assert [name for name, service in SERVICES.items() if "profiles" not in service] == ["tensorpost"]
    assert {p for service in SERVICES.values() for p in service.get("profiles", [])} == {
        "gpu", "observability", "same-host", "tls", "keys"
    }  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
def test_servers_are_read_only_limited_and_asked_for_their_health(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["deploy"]["resources"]["limits"]["memory"]
    assert service["healthcheck"]["test"] == ["CMD", "python", "-m", "tensorpost_server.health_probe"]
    assert set(service["environment"]) <= {setting_variable(field) for field in Settings.model_fields}
    assert service["build"]["target"] in re.findall(r"^FROM \S+ AS (\w+)", (ROOT / "Dockerfile").read_text(), re.M)


def test_no_image_of_ours_is_looked_for_in_a_registry() -> None:
    images = {"tensorpost": "cpu", "tensorpost:cuda": "cuda"}
    built = {name: service.get("build") for name, service in SERVICES.items() if service["image"] in images}

    assert {*SERVERS, "keys", "same-host-caller"} == built.keys()
    assert built == {name: {"context": ".", "target": images[SERVICES[name]["image"]]} for name in built}


def test_nobody_may_call_unknown_but_from_this_machine() -> None:
    for name, service in SERVICES.items():
        beyond = [port for port in service.get("ports", []) if not port.startswith("127.0.0.1:")]
        assert not beyond or name == "tls", name
        if "TENSORPOST_ALLOW_ANONYMOUS" in service.get("environment", {}):
            assert service["ports"]
    (upstream,) = SERVICES["tls"]["depends_on"]
    assert "TENSORPOST_KEYS_FILE" in SERVICES[upstream]["environment"]
    assert upstream in (ROOT / "deploy" / "compose" / "Caddyfile").read_text()


def test_files_that_are_mounted_are_there_and_speak_of_services() -> None:
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    for source in mounted:
        assert (ROOT / source).is_file() if source.startswith("./") else source in COMPOSE["volumes"], source
    scraped = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())["scrape_configs"][0]
    always = {target.partition(":")[0] for target in scraped["static_configs"][0]["targets"]}
    assert always == {name for name in SERVERS if "profiles" not in SERVICES[name]}, "the alert asks for each of them"
    assert set(scraped["dns_sd_configs"][0]["names"]) <= set(SERVERS) - always
    assert f'up{{job="{scraped["job_name"]}"}}' in (ROOT / "deploy/grafana/alerts.yaml").read_text()
    assert SERVICES["gpu"]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
