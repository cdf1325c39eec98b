"""The wire of `GET /v1/tensors/{name}`: a held tensor, or a box of it, in every form that an answer has."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from tensorpost.values.graph import Graph
from tensorpost.values.problems import InvalidParameter
from tensorpost.values.tensor_box import part_of_box, read_box

from ...operators.tensor_box import TensorBox
from ..background_threads import CallerThreads
from ..calls.call import AnnouncedTensor, Answer, Call, CallFormat, OpenSink, RunOptions
from ..media_types import RequestFormat
from .call_parser import read_query, refuse_unknown
from .held_inputs import CallerTensors
from .operator_answer import OperatorAnswer
from .wire import ReadContext

TENSORS_PATH = "/v1/tensors"

_BY_NUMPY = RunOptions("numpy")  # which copies elements where they are; a device would take all of them first


class TensorReadWire:
    """See `Wire`. The request has no body."""

    __slots__ = ("_name", "_tensors")

    takes_long = False
    needs_devices = False

    def __init__(self, name: str, tensors: CallerTensors) -> None:
        self._name, self._tensors = name, tensors

    @property
    def key(self) -> Hashable:
        return self._name, self._tensors.owner

    def format(self, fields: Mapping[bytes, bytes], length: int) -> RequestFormat:
        """See `Wire.format`: npy, unless Accept names another form."""
        return RequestFormat.from_headers({b"accept": fields.get(b"accept", b"*/*")}, 0)

    async def open(self, slow_threads: CallerThreads) -> None:
        """See `Wire.open`: there is no operator."""

    async def read(self, context: ReadContext, format_: CallFormat) -> Call:
        assert isinstance(format_, RequestFormat)
        await context.body.receive_into([])  # refuses a body that is not empty
        return await self.call(context.query, format_)

    async def call(self, query: str, format_: RequestFormat) -> Call:
        """The call that the request means.

        Raises:
            InvalidParameter: another parameter than `box`, or the tensor has no such part.
            TensorGone, TensorNotFound: there is no such tensor.
        """
        parameters = read_query(query)
        refuse_unknown(parameters, ["box"])
        tensor = await self._tensors.use(self._name)
        try:
            begin, layout = part_of_box(tensor.layout, read_box(parameters.get("box", "")))
        except InvalidParameter as error:
            error.extra["parameter"] = "box"
            raise
        data = tensor.data[begin : begin + layout.size_in_bytes]
        graph = Graph.of(TensorBox(layout))
        announced = AnnouncedTensor("tensor", layout.data_type, layout.sizes, layout.size_in_bytes, is_held=True)
        answer = OperatorAnswer.of(format_, graph, None)
        return Call(graph, _BY_NUMPY, [announced], answer, held=[data], stored_tags=[tensor.tag], is_repeatable=False)

    async def open_sinks(self, answer: Answer) -> Sequence[OpenSink | None]:
        """See `Wire.open_sinks`: it goes into the body."""
        return [None]

    async def finish_sinks(self) -> None:
        """See `Wire.finish_sinks`: there are none."""

    def close(self) -> None:
        """See `Wire.close`: the tensor."""
        self._tensors.close()
