"""The backend on a stand-in of Direct3D 12 and DirectML: what it refuses, how calls are ordered, how bytes come out."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.suite import check_bytes
from tests.support.fake_directml import FakeWindows
from tests.support.vectors import cases_of

from tensorpost import descriptors as dml
from tensorpost.descriptors import BufferTensorDesc, InterpolationMode, ReduceFunction, TileOperatorDesc
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.values.problems import DeviceLost, NoBackend, OutOfDeviceMemory
from tensorpost_server.backends import BACKENDS, CannotOpen, DeviceOptions, load_backend
from tensorpost_server.backends.directml import DirectmlBackend, backend, directml_dll, operators, queue
from tensorpost_server.engine import Pool
from tensorpost_server.planning import Plan, make_plan


def tile(data_type: str, sizes: tuple[int, ...], repeats: tuple[int, ...], slice_bytes: int = 1 << 20) -> Plan:
    return make_plan(TileOperatorDesc.of(BufferTensorDesc.packed(data_type, sizes), repeats), slice_bytes)


TILE = tile("UINT8", (4,), (3,))
EMPTY = make_plan(OnnxNode.of("Tile", {"input": OnnxTensor("float32", (2, 3)), "repeats": [2, 0]}, opset=13), 1 << 20)


@contextmanager
def opened(windows: FakeWindows, **options: Any) -> Iterator[DirectmlBackend]:
    """A backend, after which nothing is left and nothing was done wrongly."""
    made = DirectmlBackend(libraries=windows.libraries(), **options)
    try:
        yield made
    finally:
        made.close()
    assert windows.wrong == []
    assert windows.alive == []


def answer(made: DirectmlBackend, plan: Plan, *inputs: bytes) -> bytes:
    run = made.start(plan, [memoryview(data) for data in inputs])
    try:
        return b"".join([bytes(run.compute(index)) for index in range(len(plan.slices))])
    finally:
        run.close()


# Opening


def test_it_stands_before_numpy_and_auto_may_choose_it() -> None:
    names = list(BACKENDS)

    assert names.index("directml") < names.index("numpy")
    assert BACKENDS["directml"].auto
    assert load_backend("directml") is DirectmlBackend


@pytest.mark.skipif(sys.platform == "win32", reason="it says what is wrong with other systems")
def test_on_other_systems_it_says_what_to_do() -> None:
    for make in (DirectmlBackend, lambda: list(DirectmlBackend.open_all(DeviceOptions()))):
        with pytest.raises(
            CannotOpen, match=r"^DirectML runs on 64-bit Windows only .*; there, pip install '\.\[directml\]'"
        ):
            make()


def test_the_device_says_what_it_is() -> None:
    with opened(FakeWindows(level=0x5100)) as made:
        assert made.device == "directml:0 Fake GPU ? (DirectML 1.2.3.4, level 5_1)"
        assert (made.name, made.index, made.threads) == ("directml", 0, 1)


@pytest.mark.parametrize(
    ("windows", "index", "reason"),
    [
        (FakeWindows(), 1, r"adapter 1 cannot be opened for DirectML: EnumAdapters1\(1\) returned 0x887A0002"),
        (FakeWindows(no_device=True), 0, "adapter 0 cannot be opened .* D3D12CreateDevice returned 0x887A0004"),
    ],
)
def test_an_adapter_that_cannot_be_opened(windows: FakeWindows, index: int, reason: str) -> None:
    with pytest.raises(CannotOpen, match=reason):
        DirectmlBackend(index, libraries=windows.libraries())
    assert windows.alive == []


def test_every_adapter_is_a_device_but_for_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = FakeWindows(software=True)
    monkeypatch.setattr(backend, "open_libraries", windows.libraries)

    (index, gpu), (other, reason) = DirectmlBackend.open_all(DeviceOptions())

    assert isinstance(gpu, DirectmlBackend)
    assert isinstance(reason, CannotOpen)
    assert (index, other, str(reason)) == (
        0,
        1,
        "Basic Render Driver is a software adapter on the processor; use the backend numpy or numba",
    )
    gpu.close()
    assert (windows.wrong, windows.alive) == ([], [])


def test_auto_takes_it_where_it_can_and_the_cpu_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = FakeWindows(level=0x2000)
    monkeypatch.setattr(backend, "open_libraries", windows.libraries)
    pool = Pool.open("auto", DeviceOptions(), 2, minimum_work=0)
    newer = tile("FLOAT32", (1, 1, 1, 1, 2), (1, 1, 1, 1, 2))  # five dimensions since 3_1
    try:
        assert pool.workers["directml:0"].backend.device.startswith("directml:0 Fake GPU")
        assert pool.choose(tile("FLOAT32", (2, 2), (2, 2))).backend.name != "directml", "level 2_0 takes rank 4"
        assert pool.choose(tile("FLOAT32", (1, 1, 2, 2), (1, 1, 1, 2))).backend.name == "directml"
        with pytest.raises(NoBackend, match=r"takes 4 dimensions at feature level 2_0, not 5; it does from 3_1 on"):
            pool.choose(newer, "directml")
    finally:
        pool.close()
    assert (windows.wrong, windows.alive) == ([], [])


# The library


def resource(*numbers: int) -> bytes:
    """A VS_FIXEDFILEINFO as it stands in a file's version resource (page of VS_FIXEDFILEINFO)."""
    major, minor, build, revision = numbers
    fixed = (0xFEEF04BD, 0x00010000, major << 16 | minor, build << 16 | revision)
    return b"MZ" + bytes(99) + struct.pack("<4I", *fixed) + bytes(40)


def test_the_version_is_read_from_the_library() -> None:
    assert directml_dll.file_version(resource(1, 15, 4, 0)) == "1.15.4.0"


@pytest.mark.parametrize("content", [b"", b"MZ" * 50, resource(1, 2, 3, 4)[:112]])
def test_a_library_without_a_version(content: bytes) -> None:
    assert directml_dll.file_version(content) is None


@pytest.mark.parametrize("present", [("onnxruntime", "directml", "system"), ("directml", "system"), ("system",), ()])
def test_where_the_library_is_looked_for(
    present: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {"onnxruntime": "onnxruntime/capi", "directml": "directml", "system": "Windows/System32"}
    for name in present:
        (tmp_path / folders[name]).mkdir(parents=True)
        (tmp_path / folders[name] / "DirectML.dll").write_bytes(b"MZ")
    for name in ("onnxruntime", "directml"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('it is not imported')")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("SYSTEMROOT", str(tmp_path / "Windows"))

    found = directml_dll.find_directml()

    assert found == (tmp_path / folders[present[0]] / "DirectML.dll" if present else None)


def test_a_library_that_is_missing_or_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "DirectML.dll"
    path.write_bytes(resource(1, 0, 0, 0))
    monkeypatch.setattr(directml_dll, "SYSTEM", "win32")
    monkeypatch.setattr(directml_dll.ctypes, "WinDLL", lambda _: object(), raising=False)

    monkeypatch.setattr(directml_dll, "find_directml", lambda: path)
    with pytest.raises(CannotOpen, match=r"is DirectML 1.0.0.0, and 1.1.0 or newer is needed: pip install"):
        directml_dll.open_libraries()
    monkeypatch.setattr(directml_dll, "find_directml", lambda: None)
    with pytest.raises(CannotOpen, match=r"there is no DirectML.dll on this machine: pip install"):
        directml_dll.open_libraries()


def test_importing_the_package_imports_no_device_library() -> None:
    code = (
        "import sys, tensorpost_server.backends.directml; assert not {'onnxruntime', 'directml'} & sys.modules.keys()"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Bytes


OPERATORS = ("TILE", "JOIN", "SPLIT", "GEMM", "TOP_K1", "CONVOLUTION", "REDUCE", "UPSAMPLE_2D", "RESAMPLE2", "GATHER")


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("slice_bytes", [1 << 20, 8])
def test_vectors_with_strides_arrays_absent_tensors_and_several_outputs(operator: str, slice_bytes: int) -> None:
    """Fused activations are left out, whose descriptors the stand-in does not read."""
    cases = [case for case in cases_of(operator) if getattr(case.desc, "fused_activation", None) is None]
    with opened(FakeWindows(persistent=300)) as made:
        for case in cases:
            check_bytes(made, case, slice_bytes)
    assert len(cases) > 1


@pytest.mark.parametrize("persistent", [0, 300])
@pytest.mark.parametrize("temporary", [0, 100])
def test_what_an_operator_keeps_and_what_it_needs_meanwhile(persistent: int, temporary: int) -> None:
    with opened(FakeWindows(persistent=persistent, temporary=temporary)) as made:
        assert answer(made, TILE, b"abcd") == b"abcd" * 3


def test_an_operator_is_compiled_once_and_runs_once_for_all_slices() -> None:
    windows, plan = FakeWindows(), tile("UINT8", (4,), (3,), 4)
    with opened(windows) as made:
        for _ in range(3):
            assert answer(made, plan, b"abcd") == b"abcd" * 3

        assert len(plan.slices) == 3
        assert windows.calls == ["compile TILE"] + ["dispatch TILE"] * 3


def test_the_cache_of_operators_is_bounded_and_its_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "MOST_OPERATORS", 2)
    windows = FakeWindows(persistent=300)
    with opened(windows) as made:
        for repeats in (1, 2, 1, 3, 1, 2):
            assert answer(made, tile("UINT8", (4,), (repeats,)), b"abcd") == b"abcd" * repeats
        assert made.gauges()["compiled_operators"] == 2

    assert windows.calls.count("compile TILE") == 4, "1, 2, 3, and 2 again"


def test_zero_and_minus_zero_are_two_operators() -> None:
    windows = FakeWindows()
    tensor = BufferTensorDesc.packed("FLOAT32", (1,))
    plans = [
        make_plan(dml.ElementWiseClipOperatorDesc(input_tensor=tensor, output_tensor=tensor, min=low, max=1), 1 << 20)
        for low in (0.0, -0.0)
    ]
    with opened(windows) as made:
        for plan in plans:
            answer(made, plan, bytes(4))

    assert windows.calls.count("compile ELEMENT_WISE_CLIP") == 2


def test_inputs_and_outputs_larger_than_the_staging_memory_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "STAGING_BYTES", 64)
    data = np.random.default_rng(1).bytes(1000)
    plan = make_plan(
        dml.JoinOperatorDesc(
            input_tensors=(BufferTensorDesc.packed("UINT8", (1000,)), BufferTensorDesc.packed("UINT8", (7,))),
            output_tensor=BufferTensorDesc.packed("UINT8", (1007,)), axis=0,
        ),
        1 << 20,
    )  # fmt: skip
    with opened(FakeWindows()) as made:
        for _ in range(3):
            assert answer(made, plan, data, b"1234567") == data + b"1234567"


def test_a_strided_output_has_zeros_in_its_gaps_whatever_the_device_left_there() -> None:
    desc = TileOperatorDesc(
        input_tensor=BufferTensorDesc(data_type="INT16", sizes=(2, 2), strides=(0, 1)),
        output_tensor=BufferTensorDesc(data_type="INT16", sizes=(2, 4), strides=(6, 1)),
        repeats=(1, 2),
    )
    with opened(FakeWindows()) as made:
        found = answer(made, make_plan(desc, 1 << 20), np.array([7, 8], np.int16).tobytes())

    assert np.frombuffer(found, np.int16).tolist() == [7, 8, 7, 8, 0, 0, 7, 8, 7, 8]


def test_what_an_operator_leaves_as_it_was_is_zeros_and_nobody_else_s_bytes() -> None:
    windows = FakeWindows()
    part, whole = (BufferTensorDesc.packed("UINT8", (size,)) for size in (100, 900))
    join = make_plan(dml.JoinOperatorDesc(input_tensors=(part,) * 9, output_tensor=whole, axis=0), 1 << 20)
    lengths = [
        case for case in cases_of("MULTIHEAD_ATTENTION1") if "PastSequenceLengths" in case.desc.to_document_text()
    ]
    with opened(windows) as made:
        for case in [*cases_of("NONZERO_COORDINATES"), *lengths]:
            answer(made, join, *[b"\xff" * 100] * 9)  # memory that is used again
            check_bytes(made, case)

            outputs = len(case.desc.outputs)
            assert not any(map(any, windows.overwritten[-outputs:])), case.name
    assert lengths


def test_bytes_behind_elements_of_four_bits_are_zeros_and_nobody_else_s() -> None:
    windows = FakeWindows()
    scale = BufferTensorDesc.packed("FLOAT32", (1,))
    quantize = make_plan(
        dml.QuantizeOperatorDesc(
            input_tensor=BufferTensorDesc.packed("FLOAT32", (3,)), quantization_type=dml.QuantizationType.SCALE,
            quantization_tensors=(scale,),
            output_tensor=BufferTensorDesc(data_type="UINT4", sizes=(3,), total_tensor_size_in_bytes=12),
        ), 1 << 20,
    )  # fmt: skip
    with opened(windows) as made:
        answer(made, tile("UINT8", (12,), (1,)), b"\xff" * 12)  # memory that is used again
        answer(made, quantize, bytes(12), bytes(4))

        assert not any(windows.overwritten[-1])


def test_the_padding_behind_an_input_is_zeros() -> None:
    """DirectML's GATHER reads there if an index is outside the axis."""
    windows = FakeWindows()
    with opened(windows) as made:
        answer(made, tile("UINT8", (8,), (1,)), b"\xff" * 8)
        answer(made, tile("UINT8", (5,), (1,)), b"abcde")

        assert windows.bound[-1] == b"abcde\0\0\0"


def test_an_empty_output_needs_no_device() -> None:
    windows = FakeWindows()
    with opened(windows) as made:
        assert made.refusal_reason(EMPTY) is None
        assert answer(made, EMPTY, bytes(24)) == b""

    assert windows.calls == []


def test_an_onnx_node_goes_by_its_exact_descriptor_or_not_at_all() -> None:
    source = OnnxTensor("bool", (2,))
    windows, node = FakeWindows(), OnnxNode.of("Tile", {"input": source, "repeats": [2]}, opset=13)
    cubic = OnnxNode("Resize", {"X": OnnxTensor("float32", (4,)), "scales": [2.0]}, {"mode": "cubic"}, opset=19)
    with opened(windows) as made:
        assert answer(made, make_plan(node, 1 << 20), b"\1\0") == b"\1\0\1\0"
        assert "DirectML has no cubic interpolation" in str(made.refusal_reason(make_plan(cubic, 1 << 20)))

    assert windows.calls == ["compile TILE", "dispatch TILE"]


def test_a_tensor_owned_by_directml_is_bound_as_any_other() -> None:
    source = BufferTensorDesc(data_type="FLOAT32", sizes=(2,), flags=1)
    target = BufferTensorDesc.packed("FLOAT32", (4,))
    plan = make_plan(TileOperatorDesc(input_tensor=source, output_tensor=target, repeats=(2,)), 1 << 20)
    with opened(FakeWindows()) as made:
        assert answer(made, plan, b"abcdefgh") == b"abcdefgh" * 2


def test_buffers_are_used_again_and_given_up_when_nothing_runs() -> None:
    with opened(FakeWindows()) as made:
        for _ in range(50):
            answer(made, TILE, b"abcd")
        gauges = made.gauges()
        assert gauges["device_memory_used_bytes"] == 0
        assert 0 < gauges["device_memory_held_bytes"] <= 4 * (64 << 10)

        made.trim()

        assert made.gauges()["device_memory_held_bytes"] == 0
        assert answer(made, TILE, b"abcd") == b"abcd" * 3


# Refusing and failing


def test_what_it_refuses() -> None:
    windows = FakeWindows(without=(1,), level=0x3100)
    with opened(windows) as made:
        assert made.refusal_reason(TILE) is None
        assert made.refusal_reason(tile("FLOAT32", (4,), (3,))) == "this device has no tensors of FLOAT32"
        assert "at feature level 3_1; it does from 4_1 on" in str(made.refusal_reason(tile("INT64", (4,), (3,))))
        made.memory_bytes = 15
        assert made.refusal_reason(TILE) == "its tensors need 16 bytes of device memory, and this server may use 15"
        with pytest.raises(ValueError, match="directml refuses this plan: this device has no tensors of FLOAT32"):
            made.start(tile("FLOAT32", (4,), (3,)), [memoryview(bytes(16))])


def test_an_input_whose_binding_would_remove_the_device_is_refused() -> None:
    """Any caller could end the process by it: seen with DirectML 1.15.4."""
    image, rois = BufferTensorDesc.packed("FLOAT32", (1, 1, 2, 2)), BufferTensorDesc.packed("FLOAT32", (1, 4))

    def plan(**fields: Any) -> Plan:
        return make_plan(
            dml.RoiAlignGradOperatorDesc(
                input_gradient_tensor=BufferTensorDesc.packed("FLOAT32", (1, 1, 1, 1)), roi_tensor=rois,
                batch_indices_tensor=BufferTensorDesc.packed("UINT32", (1,)), output_gradient_tensor=image,
                interpolation_mode=InterpolationMode.LINEAR, spatial_scale_x=1, spatial_scale_y=1,
                input_pixel_offset=0.5, output_pixel_offset=-0.5, minimum_samples_per_output=1,
                maximum_samples_per_output=1, align_regions_to_corners=False, **fields,
            ), 1 << 20,
        )  # fmt: skip

    average, largest = ReduceFunction.AVERAGE, ReduceFunction.MAX
    with opened(FakeWindows()) as made:
        reason = made.refusal_reason(plan(input_tensor=image, reduction_function=average))
        assert reason == "an InputTensor that is not read, for averages without OutputROIGradientTensor: leave it out"
        assert made.refusal_reason(plan(reduction_function=average)) is None
        assert made.refusal_reason(plan(input_tensor=image, reduction_function=largest)) is None
        both = plan(input_tensor=image, reduction_function=average, output_roi_gradient_tensor=rois)
        assert made.refusal_reason(both) is None


def test_an_operator_that_directml_does_not_take_is_refused_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    windows, now = FakeWindows(not_compiled=("TILE",)), [0.0]
    monkeypatch.setattr(operators.time, "monotonic", lambda: now[0])
    tried = r"DirectML 1.2.3.4 does not take this TILE: Compile.*; ask for another.* again after 10 minutes$"
    with opened(windows) as made:
        assert made.refusal_reason(TILE) is None
        with pytest.raises(NoBackend, match=tried):
            made.start(TILE, [memoryview(b"abcd")])

        assert made.refusal_reason(TILE) == (
            "DirectML 1.2.3.4 does not take this TILE: CompileOperator(TILE) returned 0x80004005"
        )
        now[0] = operators.REFUSED_SECONDS
        windows.not_compiled = ()
        assert made.refusal_reason(TILE) is None
        assert answer(made, TILE, b"abcd") == b"abcd" * 3


def test_the_debug_layer_s_words_stand_in_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = FakeWindows(said="Repeats is odd")
    broken = TileOperatorDesc.model_construct(**{**dict(TILE.operation), "repeats": (9,)})  # pyright: ignore[reportArgumentType, reportCallIssue] # a descriptor gives its fields
    monkeypatch.setattr(operators.Descriptors, "get", lambda *_: broken)
    with opened(windows, debug=True) as made, pytest.raises(NoBackend, match="0x80070057: Repeats is odd"):
        made.start(TILE, [memoryview(b"abcd")])


def test_a_device_without_memory_says_so_and_goes_on() -> None:
    windows, large = FakeWindows(memory_bytes=3 << 20), tile("UINT8", (1 << 20,), (3,))
    with opened(windows) as made:
        assert answer(made, TILE, b"abcd") == b"abcd" * 3
        with pytest.raises(OutOfDeviceMemory, match="does not have enough free memory for this request now"):
            made.start(large, [memoryview(bytes(1 << 20))])
        assert made.gauges()["device_memory_used_bytes"] == 0
        assert answer(made, TILE, b"abcd") == b"abcd" * 3


def test_what_is_kept_makes_room_before_memory_is_said_to_be_short() -> None:
    windows = FakeWindows(memory_bytes=3 << 20, temporary=0)
    with opened(windows) as made:
        for size in (1 << 20, 900 << 10, 700 << 10):  # of three sizes: none of these buffers is used again
            assert answer(made, tile("UINT8", (size,), (1,)), b"a" * size) == b"a" * size


def test_the_debug_layer_s_words_stand_in_the_loss_of_a_device() -> None:
    windows = FakeWindows(dispatches_left=0, said="Binding 0 is not needed")
    made = DirectmlBackend(libraries=windows.libraries(), debug=True)
    with pytest.raises(DeviceLost, match=r"GetDeviceRemovedReason returned 0x887A0005; Binding 0 is not needed\)"):
        answer(made, TILE, b"abcd")
    made.close()


def test_a_device_that_answers_nothing_is_lost_after_a_time() -> None:
    windows = FakeWindows(hung=True)
    made = DirectmlBackend(libraries=windows.libraries(), most_seconds=0.5)
    reason = r"DXGI_ERROR_DEVICE_HUNG \(waiting .* more than 0.5 seconds \(TENSORPOST_DIRECTML_SECONDS\)\)"
    with pytest.raises(DeviceLost, match=reason):
        answer(made, TILE, b"abcd")

    made.close()

    assert "ID3D12CommandQueue" in windows.alive, "what a device may still use was released"


@pytest.mark.parametrize("after", [0, 1])
def test_a_device_that_was_removed_is_lost(after: int) -> None:
    windows = FakeWindows(dispatches_left=after)
    made = DirectmlBackend(libraries=windows.libraries())
    for _ in range(after):
        assert answer(made, TILE, b"abcd") == b"abcd" * 3
    with pytest.raises(DeviceLost, match=r"failed permanently: DXGI_ERROR_DEVICE_REMOVED \(GetDeviceRemovedReason ret"):
        answer(made, TILE, b"abcd")
    with pytest.raises(DeviceLost, match="failed permanently"):
        made.start(TILE, [memoryview(b"abcd")])

    made.close()

    assert (windows.wrong, windows.alive) == ([], [])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: made._device.queue.commands.call(10, queue.c_int32, queue.c_void_p(), queue.c_void_p()),
        lambda made: made._device.buffers.give(made._device.buffers.take(4)),
    ],
    ids=["a list without its allocator", "nothing wrong"],
)
def test_the_stand_in_finds_wrong_calls(spoil: Callable[[DirectmlBackend], object]) -> None:
    """Otherwise an empty `wrong` would mean nothing."""
    windows = FakeWindows()
    made = DirectmlBackend(libraries=windows.libraries())
    spoil(made)
    made.close()

    assert ([wrong.partition(":")[0] for wrong in windows.wrong] == ["ID3D12GraphicsCommandList[10]"]) == (
        len(windows.wrong) == 1
    )
