"""The probes on a fake DirectML behind real tables of functions, and refused where there is none."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.directml_device.probes import PROBES, compute, run_probes
from tests.support.fake_directml import FakeWindows

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost_server.backends import CannotOpen
from tensorpost_server.backends.directml import d3d12
from tensorpost_server.backends.directml.c_structs import OperatorStruct
from tensorpost_server.backends.directml.com import ComError
from tensorpost_server.backends.directml.device import Device


def answers(windows: FakeWindows) -> dict[int, dict[str, Any]]:
    return {answer["number"]: answer for answer in run_probes(libraries=windows.libraries())["answers"]}


def test_there_are_twelve() -> None:
    assert [probe.number for probe in PROBES] == list(range(1, 13))


@pytest.mark.parametrize("persistent", [0, 300])
def test_every_probe_is_answered_and_a_directml_like_ours_agrees(persistent: int) -> None:
    windows = FakeWindows(persistent=persistent)

    found = answers(windows)

    assert windows.wrong == []
    assert {number: answer["reason"] for number, answer in found.items() if answer["state"] != "answered"} == {}
    assert {number: answer["reading"] for number, answer in found.items() if not answer["agrees"]} == {}
    assert found[1]["found"] == {"RESAMPLE": [1, 3], "RESAMPLE1": [1, 3]}
    assert found[7]["found"] == dict.fromkeys(["0", "-1", "NaN", "infinity"], "refused: 0x80070057")
    assert found[12]["found"] == {
        "RequiredDescriptorCount": 3, "TemporaryResourceSize": 100, "PersistentResourceSize": persistent,
    }  # fmt: skip


def test_the_adapter_is_described() -> None:
    document = run_probes(libraries=FakeWindows(level=0x6200).libraries())

    assert document["adapter"] == {
        "index": 0, "description": "Fake GPU \u00b5", "vendor_id": 0x10DE, "device_id": 0x2330, "revision": 1,
        "dedicated_bytes": 8 << 30, "shared_bytes": 1 << 30, "software": False, "driver": "31.2.3.4",
        "feature_level": "6_2",
    }  # fmt: skip
    assert document["directml_library"] == "1.2.3.4"
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_everything_is_released_and_the_devices_last() -> None:
    windows = FakeWindows()
    run_probes(libraries=windows.libraries())

    assert windows.alive == []
    assert windows.released[-4:] == ["IDMLDevice", "ID3D12Device", "IDXGIAdapter1", "IDXGIFactory1"]


def test_another_answer_is_told_as_such() -> None:
    found = answers(FakeWindows(ties_go_down=True))

    assert (found[1]["reading"], found[1]["agrees"]) == ("half down", False)
    assert (found[6]["reading"], found[6]["agrees"]) == ("something else", False)


def test_a_device_that_is_gone_costs_only_what_it_ran() -> None:
    found = answers(FakeWindows(dispatches_left=0))

    assert {number for number, answer in found.items() if answer["state"] == "answered"} == {7, 8, 9, 12}
    assert found[1]["reason"] == "ComError: GetDeviceRemovedReason returned 0x887A0005"


def test_without_the_adapter_nothing_is_asked() -> None:
    windows = FakeWindows()
    with pytest.raises(CannotOpen, match=r"EnumAdapters1\(1\) returned 0x887A0002"):
        run_probes(1, windows.libraries())
    assert windows.alive == []


def test_the_fake_finds_wrong_calls() -> None:
    """Otherwise an empty `wrong` would mean nothing."""
    windows = FakeWindows()
    device = Device(windows.libraries())
    device.queue.dml.call(12, ctypes.c_int32, *[ctypes.c_void_p()] * 3)
    device.close()

    assert len(windows.wrong) == 1
    assert windows.wrong[0].startswith("IDMLDevice[12]: ")


def test_a_copy_through_directml_is_a_copy() -> None:
    windows, tensor = FakeWindows(), BufferTensorDesc.packed("INT8", (1, 1, 1, 3))
    twice = TileOperatorDesc.of(tensor, (1, 1, 1, 2))
    wrong = TileOperatorDesc.model_construct(input_tensor=tensor, output_tensor=tensor, repeats=(1, 1, 1, 2))
    device = Device(windows.libraries())

    assert compute(device, twice, b"abc")[0][:6] == b"abcabc"
    with pytest.raises(ComError, match=r"CreateOperator\(TILE\) returned 0x80070057"):
        device.create_operator(OperatorStruct.from_desc(wrong))
    device.close()
    assert (windows.wrong, windows.alive) == ([], [])


# The layouts of the structs that are no operators (DirectML.h, d3d12.h and dxgi.h, 64 bits)


@pytest.mark.parametrize(
    ("cls", "size", "last"),
    [
        (d3d12.BindingProperties, 24, 16), (d3d12.BufferBinding, 24, 16), (d3d12.BindingTableDesc, 32, 24),
        (d3d12.LevelsQuery, 16, 8), (d3d12.HeapProperties, 20, 16), (d3d12.ResourceDesc, 56, 48),
        (d3d12.ResourceBarrier, 32, 24), (d3d12.DescriptorHeapDesc, 16, 12), (d3d12.QueueDesc, 16, 12),
        (d3d12.AdapterDesc, 312, 304), (d3d12.Message, 32, 24),
    ],
)  # fmt: skip
def test_layouts(cls: Any, size: int, last: int) -> None:
    assert ctypes.sizeof(cls) == size
    assert getattr(cls, cls._fields_[-1][0]).offset == last


# Not here


@pytest.mark.skipif(sys.platform == "win32", reason="it says what is wrong with other systems")
def test_on_other_systems_directml_cannot_be_asked(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.directml_device.probes", "--output", str(tmp_path / "answers.json")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: DirectML runs on 64-bit Windows only")
    assert list(tmp_path.iterdir()) == []
