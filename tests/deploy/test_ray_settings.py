"""What a Ray application and its replicas take and refuse, and Ray's own autoscaling around our policy: no cluster.

Run where ray is installed (`make ray-test`); skipped elsewhere.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensorpost.values.problems import InvalidParameter
from tensorpost_server.settings import Settings

pytest.importorskip("ray", reason="needs ray: make ray-test")

pytestmark = pytest.mark.filterwarnings("default")  # of Ray's own libraries


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in [name for name in os.environ if name.startswith("TENSORPOST_")]:
        monkeypatch.delenv(name)
    return importlib.import_module("tensorpost_server.ray")


def deployment(module: Any, **arguments: Any) -> Any:
    return module.application(arguments)._bound_deployment


def bound(module: Any, **arguments: Any) -> dict[str, Any]:
    """What each replica gets, whatever the variables of its node are."""
    (given,) = deployment(module, **arguments).init_args
    return given


def test_neither_an_application_nor_a_replica_serves_everybody_unless_told_so(module: Any) -> None:
    with pytest.raises(InvalidParameter, match="anybody could call"):
        module.application({})
    with pytest.raises(InvalidParameter, match="anybody could call"):
        module.Replica({})
    with pytest.raises(InvalidParameter, match="anybody could call"):
        module.run(Settings(host="0.0.0.0"), 1, loopback=False)


def test_replicas_get_the_settings_of_the_process_that_builds_the_application(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENSORPOST_KEYS_FILE", "keys.jsonl")
    monkeypatch.setenv("TENSORPOST_ALLOWED_HOSTS", "tensors.example.org")
    monkeypatch.setenv("TENSORPOST_HOST", "10.0.0.1")

    assert bound(module, settings={"max_requests": 7}) == {
        "keys_file": str(tmp_path / "keys.jsonl"), "allowed_hosts": "tensors.example.org", "max_requests": 7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("uds", "/run/tensorpost.sock"), ("tls_certificate", "server.pem"), ("tls_key", "server.key"),
        ("tls_client_ca", "ca.pem"), ("http_protocol", "h11"), ("shared_memory", "1"), ("cuda_shared_memory", "1"),
        ("grpc_port", "8001"),
    ],
)  # fmt: skip
def test_settings_that_ray_cannot_follow_are_refused(
    module: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("TENSORPOST_ALLOW_ANONYMOUS", "1")
    with pytest.raises(InvalidParameter, match=name):
        module.application({"settings": {name: value}})
    monkeypatch.setenv(f"TENSORPOST_{name.upper()}", value)
    with pytest.raises(InvalidParameter, match=name):
        module.application({})
    with pytest.raises(InvalidParameter, match=name):
        module.Replica({}, loopback=True)
    with pytest.raises(InvalidParameter, match=name):
        module.run(Settings(), 1, loopback=True)


@pytest.mark.parametrize("name", ["host", "port"])
def test_the_proxys_address_is_no_setting_of_the_application(module: Any, name: str) -> None:
    with pytest.raises(InvalidParameter, match=name):
        module.application({"settings": {name: 8000, "allow_anonymous": True}})


@pytest.mark.parametrize(
    ("settings", "loopback", "hosts"),
    [
        ({"allow_anonymous": True}, False, "*"),
        ({"allow_anonymous": True, "allowed_hosts": "a.example"}, False, "a.example"),
        ({}, True, None),
    ],
)
def test_any_host_may_be_named_only_beyond_loopback(
    module: Any, settings: dict[str, Any], loopback: bool, hosts: str | None
) -> None:
    replica = module.Replica({**settings, "backend": "numpy"}, loopback=loopback)
    assert replica._service.settings.allowed_hosts == hosts


class Controller:
    """Ray's own wrapper of a policy, told the time, as the controller calls it every second."""

    def __init__(self, options: Any, replicas: int) -> None:
        ray: Any = importlib.import_module("ray.serve._private.autoscaling_state")
        self.replicas, self._config, self._state = replicas, options, dict[str, Any]()
        self._policy = ray._apply_autoscaling_config(ray._resolve_policy_callable(options.policy))

    def after_a_second(self, queued_bytes: float) -> int:
        context = SimpleNamespace(
            aggregated_metrics={"queued_bytes": {"each": queued_bytes}},
            capacity_adjusted_min_replicas=1,
            capacity_adjusted_max_replicas=4,
            target_num_replicas=self.replicas,
            current_num_replicas=self.replicas,
            total_num_requests=0,
            policy_state=self._state,
            config=self._config,
        )
        self.replicas, self._state = self._policy(context)
        return self.replicas


def test_ray_adds_replicas_at_once_and_takes_one_each_300_seconds(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("ray.serve.autoscaling_policy.time", SimpleNamespace(time=lambda: now))
    given = {"most_replicas": 4, "queued_bytes": 100, "settings": {"allow_anonymous": True}}
    controller = Controller(deployment(module, **given)._deployment_config.autoscaling_config, replicas=1)
    changes: list[tuple[int, int]] = []
    for second in range(1300):
        # 400 bytes until second 10; then none, but for a moment at second 200 with as many as 4 replicas may have.
        before = controller.replicas
        if controller.after_a_second(400 if second < 10 or second == 200 else 0) != before:
            changes.append((second, controller.replicas))
        now += 1

    assert changes == [(0, 4), (501, 3), (802, 2), (1103, 1)]
