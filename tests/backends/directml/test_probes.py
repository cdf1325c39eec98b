"""The probes: on ONNX Runtime's CPU provider, on a fake DirectML behind real tables of functions, and refused."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_directml import FakeWindows

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost.problems import NoBackend
from tensorpost_server import commands
from tensorpost_server.backends.directml import raw
from tensorpost_server.backends.directml.probes import PROBES, run_probes
from tensorpost_server.backends.directml.raw import RawDevice, Refused

CPU = "CPUExecutionProvider"
THROUGH_SESSIONS = [2, 3, 4, 10, 11]
OF_DIRECTML = [1, 5, 6, 7, 8, 9, 12]
pytestmark = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime has no wheel for every Python")


def by_number(document: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {answer["number"]: answer for answer in document["answers"]}


# The list


def test_there_are_twelve_and_each_has_one_way_to_be_asked() -> None:
    assert [probe.number for probe in PROBES] == list(range(1, 13))
    assert [probe.number for probe in PROBES if probe.onnx] == THROUGH_SESSIONS
    assert [probe.number for probe in PROBES if probe.directml] == OF_DIRECTML


# On the CPU provider


def test_on_the_cpu_it_checks_itself_and_says_so() -> None:
    document = run_probes(CPU)
    answers = by_number(document)

    assert document["self_check"] is True
    assert document["meaning"].endswith("these answers say nothing of DirectML")
    assert {number for number, answer in answers.items() if answer["state"] == "answered"} == {*THROUGH_SESSIONS}
    assert {answers[number]["reason"] for number in OF_DIRECTML} == {f"needs DirectML itself, which {CPU} is not"}
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_what_onnxruntime_s_cpu_provider_is_known_to_answer() -> None:
    """Worked by hand from the ONNX text; the CPU provider agrees with it, and filters at 0.5."""
    found = {number: answer["found"] for number, answer in by_number(run_probes(CPU)).items()}

    assert found[2] == [1, 1, 1, 1, 2, 2]
    assert found[3] == [1.75, 0.25]
    assert found[4] == {name: [0.625, 2.5, 4.5, 6.375] for name in ("0.5 alone", "0.5 beside 0.25")}
    assert found[10] == 2
    assert found[11] == 7


# On a fake DirectML


@pytest.mark.parametrize("persistent", [0, 300])
def test_every_probe_is_answered_and_a_directml_like_ours_agrees(persistent: int) -> None:
    windows = FakeWindows(persistent=persistent)

    answers = by_number(run_probes(CPU, libraries=windows.libraries()))

    assert windows.wrong == []
    assert {answer["state"] for answer in answers.values()} == {"answered"}
    assert {number: answers[number]["reading"] for number in OF_DIRECTML} == {
        1: "half up", 5: "half pixel", 6: "forward meaning", 7: "refuse", 8: "refuse", 9: "refuse", 12: "plausible",
    }  # fmt: skip
    assert all(answers[number]["agrees"] for number in OF_DIRECTML)
    assert answers[1]["found"] == {"RESAMPLE": [1, 3], "RESAMPLE1": [1, 3]}
    assert answers[7]["found"] == dict.fromkeys(["0", "-1", "NaN", "infinity"], "refused: 0x80070057")
    assert answers[12]["found"] == {
        "RequiredDescriptorCount": 3, "TemporaryResourceSize": 100, "PersistentResourceSize": persistent,
    }  # fmt: skip


def test_the_adapter_is_described() -> None:
    windows = FakeWindows()
    document = run_probes(CPU, libraries=windows.libraries())

    assert document["adapter"] == {
        "index": 0, "description": "Fake GPU \u00b5", "vendor_id": "0x10DE", "device_id": "0x2330", "revision": 1,
        "dedicated_video_memory_bytes": 8 << 30, "shared_system_memory_bytes": 1 << 30, "driver_version": "31.2.3.4",
        "feature_level": "6_2",
    }  # fmt: skip


def test_everything_is_released_and_the_devices_last() -> None:
    windows = FakeWindows()
    run_probes(CPU, libraries=windows.libraries())

    assert windows.alive == []
    assert windows.released[-4:] == ["IDMLDevice", "ID3D12Device", "IDXGIAdapter1", "IDXGIFactory1"]


def test_another_answer_is_told_as_such() -> None:
    answers = by_number(run_probes(CPU, libraries=FakeWindows(ties_go_down=True).libraries()))

    assert (answers[1]["reading"], answers[1]["agrees"]) == ("half down", False)
    assert (answers[6]["reading"], answers[6]["agrees"]) == ("something else", False)


def test_a_device_that_is_gone_costs_only_what_it_ran() -> None:
    answers = by_number(run_probes(CPU, libraries=FakeWindows(removed=True).libraries()))

    assert {number for number, answer in answers.items() if answer["state"] == "failed"} == {1, 5, 6}
    assert answers[1]["reason"] == "Refused: GetDeviceRemovedReason returned 0x887A0005"


@pytest.mark.parametrize(
    ("device_id", "changes", "reason"),
    [
        (1, {}, "DirectML itself cannot be opened: EnumAdapters1 returned 0x887A0002"),
        (0, {"no_device": True}, "DirectML itself cannot be opened: D3D12CreateDevice returned 0x887A0004"),
    ],
)
def test_without_a_device_the_sessions_are_asked_all_the_same(
    device_id: int, changes: dict[str, Any], reason: str
) -> None:
    windows = FakeWindows(**changes)
    document = run_probes(CPU, device_id, windows.libraries())
    answers = by_number(document)

    assert document["adapter"]["reason"] == reason
    assert [answers[number]["reason"] for number in OF_DIRECTML] == [reason] * 7
    assert [answers[number]["state"] for number in THROUGH_SESSIONS] == ["answered"] * 5
    assert windows.alive == []


def test_the_fake_finds_wrong_calls() -> None:
    """Otherwise an empty `wrong` would mean nothing."""
    windows = FakeWindows()
    with RawDevice(windows.libraries()) as device:
        device._dml.call(12, ctypes.c_int32, *[ctypes.c_void_p()] * 3)

    assert len(windows.wrong) == 1
    assert windows.wrong[0].startswith("IDMLDevice[12]: ")


def test_a_copy_through_directml_is_a_copy() -> None:
    windows, tensor = FakeWindows(), BufferTensorDesc.packed("FLOAT32", (1, 1, 1, 3))
    twice = TileOperatorDesc.of(tensor, (1, 1, 1, 2))
    wrong = TileOperatorDesc.model_construct(input_tensor=tensor, output_tensor=tensor, repeats=(1, 1, 1, 2))
    with RawDevice(windows.libraries()) as device:
        assert device.run(twice, (1.5, -2, 3), 6) == [1.5, -2, 3] * 2
        with pytest.raises(Refused, match=r"CreateOperator\(TILE\) returned 0x80070057"):
            device.create(wrong)
    assert windows.wrong == []


# The layouts of the structs that are no operators (DirectML.h, d3d12.h and dxgi.h, 64 bits)


@pytest.mark.parametrize(
    ("cls", "size", "last"),
    [
        (raw.BindingProperties, 24, 16),
        (raw.BufferBinding, 24, 16), (raw.BindingTableDesc, 32, 24), (raw.LevelsQuery, 16, 8),
        (raw.HeapProperties, 20, 16), (raw.ResourceDesc, 56, 48), (raw.DescriptorHeapDesc, 16, 12),
        (raw.QueueDesc, 16, 12), (raw.AdapterDesc, 312, 304),
    ],
)  # fmt: skip
def test_layouts(cls: Any, size: int, last: int) -> None:
    assert ctypes.sizeof(cls) == size
    assert getattr(cls, cls._fields_[-1][0]).offset == last


# Not here


@pytest.mark.skipif(sys.platform == "win32", reason="it says what is wrong with other systems")
def test_on_other_systems_directml_itself_cannot_be_asked() -> None:
    with pytest.raises(OSError, match="on 64-bit Windows only"):
        raw.open_libraries(None)
    with pytest.raises(NoBackend, match="DirectML runs on Windows only"):
        commands.probe_directml("DmlExecutionProvider", 0)


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tensorpost", "probe-directml", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(sys.platform == "win32", reason="it says what is wrong with other systems")
def test_the_command_says_why_not_and_writes_nothing(tmp_path: Path) -> None:
    ran = cli("--output", str(tmp_path / "answers.json"))

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: DirectML runs on Windows only")
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_fixture_and_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    ran = cli("--provider", CPU, "-o", str(path))

    assert (ran.returncode, ran.stdout) == (0, "")
    first, second = ran.stderr.splitlines()
    assert first.endswith("these answers say nothing of DirectML; 5 answered, 7 not asked, 0 failed")
    assert second == "not as tensorpost has it: 4, 11"
    document = json.loads(path.read_text("utf-8"))
    assert document["format"] == "tensorpost probe-directml 1"
    assert len(document["answers"]) == 12
    assert document["onnxruntime"]["package"].startswith("onnxruntime ")
