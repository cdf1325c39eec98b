"""What a call of an ONNX model sends: the model as a graph, and arrays for its inputs and its large constants."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..bodies.images import EncodedImage
from ..bodies.picture_inputs import DeclaredSizes, picture_tensor
from ..graphs.model_graph import ModelGraph, described, model_graph
from ..onnx.model_reader import OnnxModel, read_model
from ..values.datatypes import data_type
from ..values.layout import Layout
from ..values.problems import InvalidDescriptor, InvalidParameter
from .graph_calls import GraphInputs, InputValue, read_declared
from .held_tensors import HeldTensor

MOST_VALUES = 64
"""Elements of a tensor that may decide sizes, as the shape of Reshape does."""


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
    """

    document: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


def load_model(model: ModelSource | OnnxModel) -> OnnxModel:
    """Read a model; one that was read is returned as it is.

    Raises:
        InvalidParameter: it is no model, and no path of one.
        InvalidDescriptor: its bytes break a rule, or it needs what is not computed.
        OSError: the file cannot be read.
    """
    if isinstance(model, OnnxModel):
        return model
    if isinstance(model, (bytes, bytearray, memoryview)):
        return read_model(model)
    if isinstance(model, (str, os.PathLike)):
        try:
            return read_model(Path(model).read_bytes())
        except InvalidDescriptor as error:
            raise type(error)(f"{os.fspath(model)}: {error.detail}", error.violations) from None
    if hasattr(model, "SerializeToString"):
        return read_model(model.SerializeToString())
    raise InvalidParameter(
        f"model must be the path or the bytes of an ONNX file, or an onnx.ModelProto, not {type(model).__name__}"
    )


def model_call(
    model: ModelSource | OnnxModel, inputs: GraphInputs | InputValue, outputs: Sequence[str] | None
) -> ModelCall:
    """What a call of a model sends.

    Args:
        model: see `ModelSource`; or one that was read.
        inputs: what the model's inputs are, by their names; of a model with one input it may be given by itself.
        outputs: names of the outputs that are wanted; default all.

    Raises:
        InvalidParameter: an argument is wrong.
        InvalidDescriptor, UnknownOperator: the model breaks a rule, or needs what is not computed.
        OSError: a file cannot be read.
    """
    read = load_model(model)
    sizes = {tensor.name: tensor.sizes for tensor in read.inputs}
    arrays = {name: _array(name, value, sizes.get(name)) for name, value in _by_name(read, inputs).items()}
    small = _Elements({n: array for n, array in arrays.items() if array.ndim <= 1 and array.size <= MOST_VALUES})
    graph = graph_for(read, {name: _layout(name, array) for name, array in arrays.items()}, outputs, small)
    sent = {text: arrays[name] for name, text in graph.inputs.items()}
    return ModelCall(graph.document, {**sent, **graph.weights})


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


def graph_for(
    model: OnnxModel, sent: Mapping[str, Layout], outputs: Sequence[str] | None,
    values: Mapping[str, NDArray[Any]] | None = None,
) -> ModelGraph:  # fmt: skip
    """The graph of a model; see `model_graph`."""
    if outputs is not None and (isinstance(outputs, str) or not outputs):
        raise InvalidParameter(f"outputs is {outputs!r}; it must be a list of names of the model's outputs")
    return model_graph(model, sent, outputs, values or {})


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


def _by_name(model: OnnxModel, inputs: GraphInputs | InputValue) -> Mapping[str, Any]:
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


def _layout(name: str, array: NDArray[Any]) -> Layout:
    try:
        return Layout.row_major(data_type(array.dtype), array.shape)
    except KeyError:
        raise InvalidParameter(f"{name} is an array of {array.dtype}; models compute numbers and booleans") from None
