"""What a call reserves, bytes: each row worked by hand, so that no term of the formula is lost unseen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tensorpost.bodies.images import WORKING_BYTES_PER_PIXEL
from tensorpost.descriptors import BufferTensorDesc, SplitOperatorDesc, TileOperatorDesc
from tensorpost.values.graph import Graph
from tensorpost.values.operation import Operation
from tensorpost_server.http.calls.call import AnnouncedTensor, Answer, Call, RunOptions
from tensorpost_server.http.calls.prepared_call import prepare
from tensorpost_server.http.media_types import MediaType, RequestFormat
from tensorpost_server.http.open_inference.infer_request import InferInput, InferRequest, RegionPart, RequestedOutput
from tensorpost_server.http.open_inference.inference_answer import InferenceAnswer, output_forms
from tensorpost_server.http.wires.operator_answer import OperatorAnswer
from tensorpost_server.settings import Settings

SETTINGS = Settings(slice_bytes=4096, slices_ahead=1)
"""At most three slices of 4,096 bytes exist at the same time: one that is sent, one ahead, one that is computed."""

SMALL = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (1, 2, 3, 1)), (1, 2, 2, 1))  # 6 bytes, 24 of 4 x 6
LARGE = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (1024,)), (16,))  # 4,096 bytes, 65,536
PARTS = SplitOperatorDesc.completed({
    "InputTensor": BufferTensorDesc.packed("FLOAT32", (4, 2)),
    "OutputTensors": [BufferTensorDesc.packed("FLOAT32", (1, 2)), BufferTensorDesc.packed("FLOAT32", (3, 2))],
    "Axis": 0,
})  # fmt: skip  # 32 bytes, 8 and 24


class Decoded:
    """A body that is decoded with 1,000 bytes of working memory."""

    working_bytes = 1000
    tensors = ()

    def decode_into(self, memory: Sequence[memoryview], first: int = 0) -> None:
        raise AssertionError(f"nothing is decoded here, from {first} to {len(memory)}")


def answer(operation: Operation, media_type: MediaType) -> Answer:
    return OperatorAnswer(RequestFormat(media_type, media_type), Graph.of(operation), None)


def inference(operation: Operation, *outputs: RequestedOutput, compressed: bool = False, binary: bool = True) -> Answer:
    slot = operation.inputs[0]
    tensor = InferInput("input", slot.layout.data_type, slot.layout.sizes, binary_bytes=slot.layout.size_in_bytes)
    request = InferRequest("", {}, (tensor,), outputs or None, binary)
    rows = [slot.layout.data_type for slot in operation.outputs]
    coding = "gzip" if compressed else None
    return InferenceAnswer("tile", "1", "", output_forms(request, operation.outputs, rows), coding)


def call(operation: Operation, answer: Answer, *, read: bool = False, encoded: bool = False) -> Call:
    tensors = [
        AnnouncedTensor(slot.name, slot.layout.data_type, slot.layout.sizes, slot.layout.size_in_bytes)
        for slot in operation.inputs
    ]
    memory = [memoryview(bytes(tensor.size_in_bytes)) for tensor in tensors] if read else None
    return Call(Graph.of(operation), RunOptions(), tensors, answer, memory, Decoded() if encoded else None)


REGION = RequestedOutput("output", binary=False, region=RegionPart("r", 0, 1 << 20))

CASES = {
    "npy, one slice": (call(SMALL, answer(SMALL, MediaType.NPY)), 6 + 24),
    "npy, three slices of sixteen": (call(LARGE, answer(LARGE, MediaType.NPY)), 4096 + 3 * 4096),
    "a frame of two outputs": (call(PARTS, answer(PARTS, MediaType.FRAME)), 32 + 32),
    "JSON, read already": (call(SMALL, answer(SMALL, MediaType.JSON), read=True), 24 + 24 * 96),
    "npz, decoded": (call(SMALL, answer(SMALL, MediaType.NPZ), encoded=True), 6 + 1000 + 24 + 3 * 24),
    "a picture": (call(SMALL, answer(SMALL, MediaType.PNG)), 6 + 24 + 3 * 24 + 24 * WORKING_BYTES_PER_PIXEL),
    "an inference as bytes streams": (call(LARGE, inference(LARGE)), 4096 + 3 * 4096),
    "an inference as JSON": (call(SMALL, inference(SMALL, binary=False)), 6 + 24 + 24 + 24 * 96),
    "an inference, compressed": (call(SMALL, inference(SMALL, compressed=True)), 6 + 24 + 24 + 24),
    "an inference into a region": (call(LARGE, inference(LARGE, REGION), read=True), 3 * 4096),
}


@pytest.mark.parametrize("name", CASES)
def test_a_call_reserves_what_is_worked_by_hand(name: str):
    made, expected = CASES[name]
    assert prepare(made, SETTINGS).memory_bytes == expected
