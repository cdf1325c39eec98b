"""`tensorpost run`: any operator document with arrays from files; each output is streamed into a file of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .. import descriptors as dml
from ..bodies.frame import encode_head
from ..bodies.images import encode_image
from ..bodies.strict_json import read_json
from ..calls.caller_arrays import request_template, wire_form
from ..calls.held_tensors import HeldTensor
from ..calls.output_part import part_template
from ..client import Client
from ..descriptors.catalogue import slot_name
from ..onnx import NEWEST_OPSET, ONNX_OPERATORS, OnnxNode, OnnxTensor
from ..onnx.bounded_node import BoundedNode, node_class
from ..onnx.schemas import schema_of
from ..values.datatypes import data_type, directml_word
from ..values.operation import Operation, Slot
from ..values.problems import InvalidDescriptor, InvalidJson, InvalidParameter, UnknownOperator, counted, nearest
from .command_messages import ROWS_WORDS, node_words, option_words, setting_words
from .files import (
    SAFETENSORS,
    ZARR,
    Source,
    check_picture,
    check_row_format,
    destination,
    read_arrays,
    tensor_head,
    write_blocks,
)
from .tensor_commands import held_named
from .terminal import keeping, progress_bar

_SEVERAL = "several outputs are written as npy files, or into one safetensors file; end each -o in .npy or .safetensors"
_OUTPUT_SETTINGS = {"output_data_type": "DataType", "output_sizes": "Sizes"}

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The arrays that files hold.

    Attributes:
        sources: what was read, each with the path of its file.
        names: names of the inputs that they are, if the only file has several arrays with names; None if they are in
            order.
    """

    sources: Sequence[tuple[str, Source]]
    names: Sequence[str] | None

    @classmethod
    def read(cls, paths: Sequence[str], client: Client) -> InputFiles:
        """Read all files: npy, pictures, safetensors and npz archives. The arrays of one file follow each other.

        Args:
            paths: the files; `@mask` is a tensor that the server holds.
            client: asks the server for those.

        Raises:
            InvalidParameter: a file of several arrays with names is not the only file.
            OSError, InvalidFrame, ModuleNotFoundError: whatever `read_array` refuses.
            TensorNotFound: the server holds no such tensor.
        """
        files = [(path, _held(client, path) if path.startswith("@") else read_arrays(path)) for path in paths]
        sources: list[tuple[str, Source]] = []
        for path, arrays in files:
            count = len(arrays)  # np.savez(file, a, b) calls them arr_0 and arr_1
            unnamed = [""] if "" in arrays else [f"arr_{index}" for index in range(count)]
            if set(arrays) == set(unnamed):
                sources += [(path, arrays[name]) for name in unnamed]
            elif len(files) == 1:
                return cls([(path, source) for source in arrays.values()], list(arrays))
            else:
                raise InvalidParameter(f"{path} names its arrays ({', '.join(arrays)}); give it without other files")
        return cls(sources, None)

    @property
    def arrays(self) -> Sequence[NDArray[Any]]:
        """The arrays alone."""
        return [source.array for _, source in self.sources]


def _held(client: Client, text: str) -> Mapping[str, Source]:
    return {"": Source(cast("NDArray[Any]", held_named(client, text)), "npy")}


def described(document: Mapping[str, Any], files: InputFiles) -> tuple[Operation, dict[str, NDArray[Any]]]:
    """The operation of a document, whose input tensors may be left out: they are described by the arrays.

    Args:
        document: `{"type": ..., "desc": {...}}`, or an ONNX node.
        files: the inputs by name, or in binding order; those of an array of tensors follow each other.

    Returns:
        The operation, and the arrays by the names of its inputs.

    Raises:
        UnknownOperator, InvalidDescriptor: the document breaks a rule.
        InvalidParameter: there are more or fewer arrays than the operation has inputs.
    """
    operation = _node(document, files) if "op_type" in document else _descriptor(document, files)
    arrays, names = files.arrays, [slot.name for slot in operation.inputs]
    if files.names is not None:
        _check_names(operation.name, files.names, names)
        return operation, _laid_out(operation, dict(zip(files.names, arrays, strict=True)))
    if len(names) != len(arrays):
        wanted = ", ".join(names) or "none"
        raise InvalidParameter(f"{operation.name} has {counted(len(names), 'input')} ({wanted}), not {len(arrays)}")
    return operation, _laid_out(operation, dict(zip(names, arrays, strict=True)))


def _laid_out(operation: Operation, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays, with the elements of tensors that have strides or padding laid out as their descriptors say.

    Raises:
        InvalidParameter: an array is neither such a tensor's elements nor its buffer.
    """
    found = dict(arrays)
    if not isinstance(operation, dml.OperatorDesc):
        return found
    for slot, (_, tensor) in zip(operation.inputs, operation.tensors("input"), strict=True):
        layout, array = slot.layout, found.get(slot.name)
        if layout.packed or array is None or isinstance(cast("object", array), HeldTensor):
            continue
        if array.dtype == layout.data_type.dtype and array.shape == layout.sizes:
            found[slot.name] = tensor.buffer_of(array)
        elif array.dtype != np.uint8 or array.shape != (layout.size_in_bytes,):
            raise InvalidParameter(
                f"{slot.name} is {array.dtype.name} of shape {array.shape}, and its descriptor has strides or padding: "
                f"the file must have its elements, {layout.data_type.numpy_name} of shape {layout.sizes}, or its whole "
                f"buffer, uint8 of shape ({layout.size_in_bytes},)"
            )
    return found


def _check_names(operator: str, names: Sequence[str], known: Sequence[str], *, more: str = "") -> None:
    if not {*names} <= {*known}:
        takes, saved = ", ".join(known) or "none", ", ".join(names)
        raise InvalidParameter(
            f"{operator} takes the tensors {takes}{more}, and the file has {saved[:200]}: "
            "save them under these names, or without names in this order"
        )


def _descriptor(document: Mapping[str, Any], files: InputFiles) -> Operation:
    from ..descriptors.documents import operator_members  # an ONNX node needs no descriptors

    type_member, desc_member = operator_members(document)
    kind, desc = document.get(type_member), document.get(desc_member)
    if isinstance(kind, str) and isinstance(desc, Mapping):
        fields: dict[str, Any] = {**cast("Mapping[str, Any]", desc)}
        cls, left = dml.operator_class(kind), list(files.arrays)
        known = cls.facts.fields_by_kind["input"]
        paths = [cls.path_of_slot(name) for name in files.names or ()]
        if None in paths:
            names = [field.slot_name + ("_0" if field.is_array else "") for field in known]
            _check_names(
                cls.operator_type, files.names or (), names, more=", ..." if known[-1:] and known[-1].is_array else ""
            )
        for field in known:
            if files.names is None:
                taken, left = (left, []) if field.is_array else (left[:1], left[1:])
            else:
                of_field = [
                    (path, x)
                    for path, x in zip(paths, files.arrays, strict=True)
                    if path and path[0] == field.attribute_name
                ]
                taken = [x for _, x in sorted(of_field, key=itemgetter(0))]
            if taken and field.name not in fields:
                tensors = [{"DataType": _directml_name(field.name, x), "Sizes": list(x.shape)} for x in taken]
                fields[field.name] = tensors if field.is_array else tensors[0]
        document = {**document, desc_member: fields}
    return dml.parse_operator(document, complete=True)


def _directml_name(field: str, array: NDArray[Any]) -> str:
    name = data_type(array.dtype).directml
    if name is None:
        raise InvalidParameter(f"{slot_name(field)}: DirectML has no type for {array.dtype}; convert the file first")
    return name


def _node(document: Mapping[str, Any], files: InputFiles) -> OnnxNode:
    inputs, arrays = document.get("inputs"), files.arrays
    if isinstance(inputs, Mapping) and arrays:
        tensors: dict[str, Any] = {**cast("Mapping[str, Any]", inputs)}
        schema = schema_of(str(document.get("op_type")), document.get("opset"))
        names = [slot.name for slot in schema.data_inputs if not slot.variadic]
        names += [f"{slot.name}_{at}" for slot in schema.data_inputs if slot.variadic for at in range(len(arrays))]
        if files.names is not None:
            _check_names(schema.name, files.names, names)
            names = [*files.names]
        for name, array in zip(names, arrays, strict=False):
            tensors.setdefault(name, OnnxTensor(data_type(array.dtype).numpy_name, array.shape).to_json())
        document = {**document, "inputs": tensors}
    return node_class(document.get("op_type")).from_json(document)


def attributes_of(settings: Sequence[str]) -> dict[str, str]:
    """The attributes of `--set name=value`, as texts.

    Raises:
        InvalidParameter: a setting without an equals sign, or a name that is set twice.
    """
    attributes: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise InvalidParameter(f"{setting[:60]!r} has no =; write NAME=VALUE, as in axis=1")
        if name.strip() in attributes:
            raise InvalidParameter(f"{name.strip()[:60]!r} is set twice; separate several values by commas")
        attributes[name.strip()] = value.strip()
    return attributes


def described_operator(
    name: str, attributes: Mapping[str, str], files: InputFiles
) -> tuple[Operation, dict[str, NDArray[Any]]]:
    """An operator from its name and its attributes as texts, and the arrays by the names of its inputs.

    Attributes are also `output_data_type` and `output_sizes`, of the first output; by default those of the first array.

    Raises:
        UnknownOperator: there is no such operator.
        InvalidDescriptor: it breaks a rule.
        InvalidParameter: it has no such attribute, or more or fewer inputs than there are arrays.
    """
    try:
        cls = dml.operator_class(name)
    except UnknownOperator as error:
        if error.extra["nearest"] is None:
            error.add_note("tensorpost operators lists them all, tensorpost operators WORD those with a word")
        raise
    fields = {field.attribute_name: field for field in cls.facts.fields_by_kind["attribute"]}
    desc: dict[str, Any] = {}
    output: dict[str, Any] = {}
    for attribute, text in attributes.items():
        field = fields.get(attribute.lower()) or next((f for f in fields.values() if f.name == attribute), None)
        if field is not None:
            desc[field.name] = _value(text, is_array=field.is_array)
        elif attribute in _OUTPUT_SETTINGS:
            value = _value(text, is_array=attribute == "output_sizes")
            output[_OUTPUT_SETTINGS[attribute]] = value if attribute == "output_sizes" else directml_word(value)
        else:
            guess = nearest(attribute, [*fields])
            hint = f"did you mean {guess}?" if guess else f"it has {', '.join(fields) or 'none'}"
            raise InvalidParameter(f"{cls.operator_type} has no attribute {attribute[:60]!r}; {hint}")
    arrays = files.arrays
    required = [field.slot_name for field in cls.facts.fields_by_kind["input"] if not field.optional]
    if len(arrays) < len(required):
        takes = counted(len(required), "tensor")
        raise InvalidParameter(
            f"{cls.operator_type} takes {takes} ({', '.join(required)}); got {counted(len(arrays), 'array')}"
        )
    if output:
        first = {"DataType": _directml_name("input", arrays[0]), "Sizes": list(arrays[0].shape)} if arrays else {}
        field = cls.facts.fields_by_kind["output"][0]
        desc[field.name] = [{**first, **output}] if field.is_array else {**first, **output}
    try:
        return described({"type": cls.operator_type, "desc": desc}, files)
    except InvalidDescriptor as error:
        raise setting_words(cls, error) from None


def _value(text: str, *, is_array: bool) -> Any:
    """A number, a structure or a list as in JSON, a list with commas, or a word."""
    if is_array and not text.startswith("["):
        return [_value(item.strip(), is_array=False) for item in text.split(",")]
    try:
        return read_json(text.encode())
    except InvalidJson:
        return text


def described_node(
    op_type: str, opset: int | None, attributes: Mapping[str, str], files: InputFiles
) -> tuple[Operation, dict[str, NDArray[Any]]]:
    """An ONNX node from attributes and small inputs as texts, and the arrays by the names of its tensors.

    Raises:
        UnknownOperator, InvalidDescriptor: there is no such operator, or the node breaks a rule.
        InvalidParameter: there are more arrays than the operator has tensors.
    """
    at = NEWEST_OPSET if opset is None else opset
    op_type = next((s.op_type for s in ONNX_OPERATORS if s.op_type.lower() == op_type.lower()), op_type)
    schema, arrays = schema_of(op_type, at), files.arrays
    slots = schema.data_inputs
    names = [slot.name for slot in slots if not slot.variadic]
    names += [f"{slot.name}_{index}" for slot in slots if slot.variadic for index in range(len(arrays) - len(names))]
    if len(arrays) > len(names):
        takes = counted(len(names), "tensor")
        raise InvalidParameter(f"{op_type} takes {takes} ({', '.join(names)}), and there are {len(arrays)}")
    if files.names is not None:
        _check_names(op_type, files.names, names)
        names = [*files.names]
    by_name = dict(zip(names, arrays, strict=False))
    tensors = {name: OnnxTensor(data_type(x.dtype).numpy_name, x.shape) for name, x in by_name.items()}
    try:
        return node_class(op_type).from_query(op_type, at, dict(attributes), tensors), by_name
    except InvalidDescriptor as error:
        raise node_words(error, schema) from None


def compute_outputs(
    client: Client, operation: Operation, arrays: dict[str, NDArray[Any]], outputs: Sequence[str],
    formats: Sequence[str | None], options: Mapping[str, Any], *, quiet: bool,
    packed: bool = False, rows: slice | None = None,
) -> None:  # fmt: skip
    """Run an operation and write its outputs: npy, safetensors and bytes are streamed, one picture is written whole.

    Raises:
        InvalidParameter: whatever `write_outputs` refuses, an output that is not a picture, or rows that there are not.
    """
    if isinstance(operation, BoundedNode):
        _compute_bounded(client, operation, arrays, outputs, options, rows)
        return
    if rows is not None:
        _compute_rows(client, operation, arrays, outputs, formats, options, rows, quiet=quiet)
        return
    if ZARR in formats:
        if len(outputs) != 1 or len(operation.outputs) != 1:
            raise InvalidParameter(_SEVERAL)
        total = total_bytes(operation, arrays)
        with progress_bar(total, quiet=quiet, kept=True) as progress, keeping(outputs[0]):
            client.write_zarr(operation, arrays, outputs[0], progress=progress, **options)
        return
    streamed = (None, "npy", SAFETENSORS, "bin")
    picture = next((file_format for file_format in formats if file_format not in streamed), None)
    if picture is not None and (len(outputs) != 1 or len(operation.outputs) != 1):
        raise InvalidParameter(_SEVERAL)
    with progress_bar(total_bytes(operation, arrays), quiet=quiet) as progress:
        if picture is None:
            blocks = client.stream(operation, arrays, progress=progress, **options)
            write_outputs(operation, blocks, outputs, formats, packed=packed)
            return
        (slot,) = operation.outputs
        shape = (
            slot.layout.sizes[1:] if len(slot.layout.sizes) == 4 and slot.layout.sizes[0] == 1 else slot.layout.sizes
        )
        check_picture(slot.layout.data_type.dtype, shape, picture)
        content = encode_image(client.run(operation, arrays, progress=progress, **options).reshape(shape), picture)
        with destination(outputs[0]) as file:
            file.write(content)


def _compute_bounded(
    client: Client, node: BoundedNode, arrays: dict[str, NDArray[Any]], outputs: Sequence[str],
    options: Mapping[str, Any], rows: slice | None,
) -> None:  # fmt: skip
    """Run a node whose sizes depend on elements, and write its outputs, of which the answer says the sizes."""
    from .graph_commands import arrays_to_files

    if len(node.result_names) != len(outputs):
        names = ", ".join(node.result_names)
        raise InvalidParameter(
            f"{node.name} has {counted(len(node.result_names), 'output')} here ({names}): name each with -o"
        )
    found = client.run(node, arrays, rows=rows, **options)
    made = [found] if len(node.result_names) == 1 else found
    arrays_to_files(dict(zip(node.result_names, made, strict=True)), dict(zip(node.result_names, outputs, strict=True)))


def _compute_rows(
    client: Client, operation: Operation, arrays: dict[str, NDArray[Any]], outputs: Sequence[str],
    formats: Sequence[str | None], options: Mapping[str, Any], rows: slice, *, quiet: bool,
) -> None:  # fmt: skip
    """Write some rows of an operation's only output."""
    with option_words(ROWS_WORDS):
        template, _ = part_template(request_template(operation), rows)
    (slot,) = template.outputs
    if len(outputs) != 1:
        raise InvalidParameter(f"--rows writes one file, and -o names {len(outputs)}; name one")
    check_row_format(formats[0])
    head = b"" if formats[0] == "bin" else tensor_head(formats[0], slot.name, slot.layout.data_type, slot.layout.sizes)
    total = slot.layout.size_in_bytes + _sent_bytes(arrays)
    with progress_bar(total, quiet=quiet) as progress, destination(outputs[0]) as file:
        write_blocks(file, head, client.stream(operation, arrays, progress=progress, rows=rows, **options))


def write_outputs(
    operation: Operation, blocks: Iterator[Any], outputs: Sequence[str], formats: Sequence[str | None], *, packed: bool
) -> None:
    """Write each output of a stream as npy, safetensors or its bytes; a file appears when it is complete.

    Args:
        operation: what is computed.
        blocks: memoryviews of the only output, or a `TensorBlock` for each block of several.
        outputs: paths, one for each output, or one safetensors file for all of them; `-` for standard output.
        formats: format of each path; `bin` is the bytes of the output as it is laid out, gaps included, and so is an
            output with strides in safetensors.
        packed: write only the elements of an output with strides; it is held in memory meanwhile.

    Raises:
        InvalidParameter: there are more or fewer paths than outputs, or an output is not packed.
    """
    slots = operation.outputs
    if len(slots) > 1 and [*formats] == [SAFETENSORS]:
        _write_together(operation, outputs[0], blocks, packed=packed)
        return
    if len(slots) != len(outputs):
        names = ", ".join(slot.name for slot in slots)
        raise InvalidParameter(
            f"{operation.name} has {counted(len(slots), 'output')} ({names}): name each with -o, in this order, or one "
            "file that ends in .safetensors"
        )
    for slot, file_format in zip(slots, formats, strict=True):
        if file_format not in ("bin", SAFETENSORS) and not slot.layout.packed and not packed:
            raise InvalidParameter(
                f"npy holds packed tensors only, and {slot.name} has strides or padding; add --packed to write its "
                "elements alone, or end -o in .safetensors or .bin to write all of its bytes"
            )
    groups = [blocks] if len(slots) == 1 else _by_output(blocks)
    for slot, file_format, path, group in zip(slots, formats, outputs, groups, strict=True):
        layout = slot.layout
        if file_format == "bin":
            head = b""
        elif file_format == SAFETENSORS and not packed:
            head = tensor_head(SAFETENSORS, slot.name, *wire_form(slot), operation.to_document_text())
        else:
            head = tensor_head(file_format, slot.name, layout.data_type, layout.sizes)
        with destination(path) as file:
            write_blocks(file, head, _elements(slot, group) if packed and file_format != "bin" else group)


def _write_together(operation: Operation, path: str, blocks: Iterator[Any], *, packed: bool) -> None:
    """All outputs in one safetensors file, under their names."""
    slots = operation.outputs
    if packed:
        head = encode_head([(slot.name, slot.layout.data_type, slot.layout.sizes) for slot in slots])
    else:
        head = encode_head([(slot.name, *wire_form(slot)) for slot in slots], {"op": operation.to_document_text()})
    with destination(path) as file:
        for slot, group in zip(slots, _by_output(blocks), strict=True):
            write_blocks(file, head, _elements(slot, group) if packed else group)
            head = b""


def _by_output(blocks: Iterator[Any]) -> Iterator[Iterator[memoryview]]:
    """The blocks of each output, which follow each other."""
    for _, group in groupby(blocks, lambda block: block.output):
        yield (block.data for block in group)


def _elements(slot: Slot, blocks: Iterable[memoryview]) -> Iterable[memoryview]:
    """The elements of an output alone, in row-major order."""
    if slot.layout.packed:
        return blocks
    elements = np.ascontiguousarray(slot.layout.view(b"".join(blocks)))
    return [elements.reshape(-1).view(np.uint8).data]


def total_bytes(operation: Operation, arrays: Arrays) -> int:
    """Bytes that are sent and received, for a progress bar."""
    return _sent_bytes(arrays) + sum(slot.layout.size_in_bytes for slot in operation.outputs)


def _sent_bytes(arrays: Arrays) -> int:
    return sum(
        0 if isinstance(cast("object", array), HeldTensor) else int(np.asarray(array).nbytes)
        for array in arrays.values()
    )
