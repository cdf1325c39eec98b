"""What a call of an ONNX model sends: the model as a graph, and arrays for its inputs and its large constants."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..bodies.images import EncodedImage
from ..bodies.npy import encode_npy_head
from ..bodies.picture_inputs import DeclaredSizes, picture_tensor
from ..graphs.model_graph import ModelStage, described, model_graph, model_stage
from ..graphs.model_graph_reader import MOST_DECIDING
from ..graphs.model_lists import NO_LISTS, ListedOutputs, model_of_tensors
from ..onnx.model_reader import OnnxModel, read_model
from ..values.datatypes import data_type
from ..values.layout import Layout
from ..values.problems import InvalidDescriptor, InvalidParameter
from .graph_calls import InputValue, ModelInputs, read_declared
from .held_tensors import HeldTensor

_PARAMETERS = ("backend", "device", "feature_level", "keep", "outputs", "replace", "rows")
"""What a query of `POST /v1/onnx` has beside held inputs."""


class SerializableModel(Protocol):
    """What is shaped like `onnx.ModelProto`."""

    def SerializeToString(self) -> bytes:  # noqa: N802 # its name in the package
        """The bytes of the model."""
        ...


ModelSource: TypeAlias = bytes | str | os.PathLike[str] | SerializableModel
"""An ONNX model: the bytes of its file, the path of it, or an `onnx.ModelProto`."""


class ModelCall(NamedTuple):
    """What a call of a model sends.

    Attributes:
        document: the model as a graph, for these inputs.
        arrays: what the document's inputs are.
        outputs: names of the model's outputs that are wanted.
        lists: the outputs that are sequences or optional values.
    """

    document: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    outputs: Sequence[str] = ()
    lists: ListedOutputs = NO_LISTS


class SentModel(NamedTuple):
    """What a call of a model sends whose sizes depend on elements: the model itself, which the server reads in parts.

    Attributes:
        content: the bytes of the model.
        arrays: its inputs by name.
        outputs: the names of the outputs that come back.
        boundary: stands between the parts of the body, and by chance in none of them.
        selects: whether the caller chose these outputs; else they are all.
    """

    content: bytes | bytearray | memoryview
    arrays: Mapping[str, NDArray[Any] | HeldTensor]
    outputs: Sequence[str]
    boundary: str
    selects: bool

    @property
    def media_type(self) -> str:
        """The Content-Type of `parts`."""
        return f"multipart/form-data; boundary={self.boundary}"

    @property
    def query(self) -> dict[str, str]:
        """The parameters of `POST /v1/onnx`: the outputs, and the inputs that the server holds.

        Raises:
            InvalidParameter: a held input or an output cannot be named there.
        """
        if several := [name for name in self.outputs if self.selects and "," in name]:
            message = f"the model's output {several[0]!r} has a comma in its name, which a request cannot carry; leave "
            raise InvalidParameter(message + "outputs out, and all come back")
        held = {name: _reference(name, each) for name, each in self.arrays.items() if isinstance(each, HeldTensor)}
        return {"outputs": ",".join(self.outputs), **held} if self.selects else held

    def parts(self) -> tuple[memoryview, ...]:
        """The body of `POST /v1/onnx`: the model, and each input that the server does not hold as an npy file."""
        views = [*self._part_head("model"), memoryview(self.content)]
        for name, array in self.arrays.items():
            if isinstance(array, HeldTensor):
                continue
            if name == "model":
                message = "the model's input 'model' has the name of the part of a request that the model is; rename it"
                raise InvalidParameter(message)
            head = encode_npy_head(data_type(array.dtype), array.shape)
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data  # memoryview has no bfloat16
            views += [*self._part_head(name), memoryview(head), flat]
        return (*views, memoryview(f"\r\n--{self.boundary}--\r\n".encode()))

    def _part_head(self, name: str) -> list[memoryview]:
        if "\r" in name or "\n" in name:
            message = f"the model's input {name!r} has a line break in its name, which a request cannot carry"
            raise InvalidParameter(message)
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        text = f'\r\n--{self.boundary}\r\nContent-Disposition: form-data; name="{escaped}"\r\n\r\n'
        return [memoryview((text[2:] if name == "model" else text).encode())]


def _reference(name: str, held: HeldTensor) -> str:
    """What refers to a held tensor in a query: `@mask`, `@mask[0:10,:]`."""
    instead = "pass its elements, held.get(), in its place"
    if name in _PARAMETERS:
        raise InvalidParameter(
            f"the model's input {name!r} has the name of a parameter of POST /v1/onnx, so that it cannot be a held "
            f"tensor there; {instead}"
        )
    if held.is_reshaped:
        raise InvalidParameter(
            f"{name} is {held!r}, which has other sizes than what the server holds; sizes of the model depend on "
            f"elements, and such a model takes a held tensor with the sizes that it has; {instead}"
        )
    document = held.to_document()
    return f"@{document['tensor']}" + (f"[{document['box']}]" if "box" in document else "")


def model_bytes(model: ModelSource) -> bytes | bytearray | memoryview:
    """The bytes of a model.

    Raises:
        InvalidParameter: it is no model, and no path of one.
        OSError: the file cannot be read.
    """
    if isinstance(model, (bytes, bytearray, memoryview)):
        return model
    if isinstance(model, (str, os.PathLike)):
        return Path(model).read_bytes()
    if hasattr(model, "SerializeToString"):
        return model.SerializeToString()
    raise InvalidParameter(
        f"model must be the path or the bytes of an ONNX file, or an onnx.ModelProto, not {type(model).__name__}"
    )


def load_model(model: ModelSource) -> OnnxModel:
    """Read a model.

    Raises:
        InvalidParameter: it is no model, and no path of one.
        InvalidDescriptor: its bytes break a rule, or it needs what is not computed.
        OSError: the file cannot be read.
    """
    return _read(model, model_bytes(model))


def _read(model: ModelSource, content: bytes | bytearray | memoryview, *, lists: bool = False) -> OnnxModel:
    try:
        return read_model(content, lists=lists)
    except InvalidDescriptor as error:
        if not isinstance(model, (str, os.PathLike)):
            raise
        raise type(error)(f"{os.fspath(model)}: {error.detail}", error.violations) from None


def model_call(model: ModelSource, inputs: ModelInputs | InputValue, outputs: Sequence[str] | None) -> ModelCall:
    """What a call of a model sends as a graph; see `model_request`.

    Raises:
        InvalidDescriptor: the sizes of a tensor depend on elements; and see `model_request`.
    """
    call = model_request(model, inputs, outputs)
    if isinstance(call, ModelCall):
        return call
    layouts = {name: _layout(name, array) for name, array in call.arrays.items()}
    graph = model_graph(read_model(call.content), layouts, outputs, _small(call.arrays))  # names the node
    raise AssertionError(f"the model is a graph of {len(graph.document)} members")


def model_request(
    model: ModelSource, inputs: ModelInputs | InputValue, outputs: Sequence[str] | None, read: OnnxModel | None = None
) -> ModelCall | SentModel:  # fmt: skip
    """What a call of a model sends: a graph, or the model itself if its sizes depend on elements.

    Args:
        model: see `ModelSource`.
        inputs: what the model's inputs are, by their names; of a model with one input it may be given by itself.
        outputs: names of the outputs that are wanted; default all.
        read: the model, if it was read before.

    Raises:
        InvalidParameter: an argument is wrong.
        InvalidDescriptor, UnknownOperator: the model breaks a rule, or needs what is not computed.
        OSError: a file cannot be read.
    """
    content = None
    if read is None:
        content = model_bytes(model)
        read = _read(model, content, lists=True)
    read, given, has_lists = model_of_tensors(read, _by_name(read, inputs))
    has_lists = has_lists or any(each.kind != "tensor" for each in read.outputs)
    sizes = {tensor.name: tensor.sizes for tensor in read.inputs}
    arrays = {name: _array(name, value, sizes.get(name)) for name, value in given.items()}
    if outputs is not None and (isinstance(outputs, str) or not outputs):
        raise InvalidParameter(f"outputs is {outputs!r}; it must be a list of names of the model's outputs")
    graph = model_stage(read, {name: _layout(name, array) for name, array in arrays.items()}, outputs, _small(arrays))
    if isinstance(graph, ModelStage):
        if has_lists:
            message = "sizes in the model depend on elements; then all of its inputs and outputs must be tensors, and "
            raise InvalidParameter(message + "some are sequences or optional values")
        content = model_bytes(model) if content is None else content
        names = outputs or [each.name for each in read.outputs]
        return SentModel(content, arrays, names, token_hex(16), outputs is not None)
    sent = {text: arrays[name] for name, text in graph.inputs.items()}
    wanted = outputs or [each.name for each in read.outputs]
    return ModelCall(graph.document, {**sent, **graph.weights}, wanted, graph.lists)


class _Elements(Mapping[str, NDArray[Any]]):
    """The elements of small inputs; those of held tensors travel here if they decide a size."""

    def __init__(self, arrays: Mapping[str, NDArray[Any] | HeldTensor]) -> None:
        self._arrays = {**arrays}

    def __getitem__(self, name: str) -> NDArray[Any]:
        array = self._arrays[name]
        if isinstance(array, HeldTensor):
            try:
                array = self._arrays[name] = np.asarray(array)
            except TypeError:
                raise InvalidParameter(
                    f"the elements of {name!r} may decide a size of the model, so they are needed here, and an "
                    "AsyncClient holds them; pass await held.get() in its place"
                ) from None
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _small(arrays: Mapping[str, NDArray[Any] | HeldTensor]) -> _Elements:
    """The inputs whose elements may decide sizes, by name."""
    return _Elements({
        name: array for name, array in arrays.items() if array.ndim <= 1 and array.size <= MOST_DECIDING
    })  # fmt: skip


def declared_layouts(model: OnnxModel, sizes: Mapping[str, Sequence[int]]) -> dict[str, Layout]:
    """The inputs as the model declares them.

    Args:
        model: the model.
        sizes: numbers for the sizes of inputs, by name; needed where the model has names or nothing.

    Raises:
        InvalidParameter: a type or a size is not known.
    """
    found: dict[str, Layout] = {}
    for tensor in model.inputs:
        given = sizes.get(tensor.name, tensor.sizes)
        numbers = [size for size in given or () if isinstance(size, int)]
        if tensor.data_type is None or given is None or len(numbers) < len(given):
            raise InvalidParameter(
                f"the model's input {tensor.name!r} is {described(tensor)}; give its sizes, as in "
                f"{tensor.name}=1,3,224,224"
            )
        found[tensor.name] = Layout.row_major(tensor.data_type, numbers)
    unknown = [name for name in sizes if name not in found]
    if unknown:
        known = ", ".join(found) or "none"
        raise InvalidParameter(f"the model has no input {unknown[0][:60]!r}; its inputs: {known}")
    return found


def _by_name(model: OnnxModel, inputs: ModelInputs | InputValue) -> Mapping[str, Any]:
    if isinstance(inputs, Mapping):
        return inputs
    if len(model.inputs) != 1:
        names = ", ".join([tensor.name for tensor in model.inputs]) or "none"
        raise InvalidParameter(
            f"the model has the inputs {names}; inputs must be a mapping from these names, not {type(inputs).__name__}"
        )
    return {model.inputs[0].name: inputs}


def _array(name: str, value: object, sizes: DeclaredSizes) -> NDArray[Any]:
    found = read_declared(name, value, sizes, "model")
    return picture_tensor(found.decode(), sizes) if isinstance(found, EncodedImage) else found


def _layout(name: str, array: NDArray[Any] | HeldTensor) -> Layout:
    try:
        return Layout.row_major(data_type(array.dtype), array.shape)
    except KeyError:
        raise InvalidParameter(f"{name} is an array of {array.dtype}; models compute numbers and booleans") from None
