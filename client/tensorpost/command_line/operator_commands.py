"""The commands that compute or check an operation: tile, resample, run, onnx, validate."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ..network.options import DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL
from ..values.problems import InvalidDescriptor, InvalidJson, InvalidParameter, UnsupportedAtLevel, Violation
from .command_options import (
    AsJson,
    Attributes,
    BackendOption,
    CaCert,
    Cert,
    DeviceOption,
    InputFile,
    KeyFile,
    Level,
    OutputFile,
    Quiet,
    RowsOption,
    Silence,
    Uds,
    Url,
    axes_of,
    client_of,
    counts_of,
    factors_of,
    filter_of,
    mode_named,
    rows_of,
    size_of,
    usage,
)
from .terminal import keeping, place_of, print_json, progress_bar

if TYPE_CHECKING:  # for annotations only: NumPy takes long to load, and --help needs none of it
    from numpy.typing import NDArray

    from .. import descriptors as dml
    from ..client import Client
    from ..descriptors.feature_levels import FeatureLevel
    from ..onnx import OnnxNode
    from ..values.operation import Operation

_TILE_WORDS = {
    "repeats": "--repeats",
    "Repeats": "--repeats",
    "x": "IN",
    "input": "IN",
    "feature_level": "--level",
}
_RESAMPLE_WORDS = {"scales": "--scale", "sizes": "--size", "axes": "--axes", "x": "IN"}
_LISTS = "a list that has an entry for each dimension is written in this order, as in -s repeats=2,3,1"


@dataclass(frozen=True, slots=True)
class _Computation:
    """What a command computes: an operation, its input, and the shape of the result."""

    operation: Operation
    array: NDArray[Any]
    shape: tuple[int, ...]
    backend: str | None
    device: int | None
    level: str | None


def _output_format(output: str, *, raw: bool = False) -> str | None:
    """The format of an output; `bin` only where `raw` outputs can be."""
    from .files import check_destination, format_of

    wanted = "bin" if raw and output.lower().endswith(".bin") else usage("--output", format_of, output)
    check_destination(output)
    if output == "-" and sys.stdout.isatty():
        raise typer.BadParameter("a terminal cannot show the result; write it to a file with -o", param_hint="--output")
    return wanted


def _compute(client: Client, computation: _Computation, output: str, out_format: str, *, quiet: bool) -> None:
    """Run it and write its result."""
    from ..bodies.images import encode_image
    from .files import SAFETENSORS, ZARR, check_picture, destination, tensor_head, write_blocks

    (slot,) = computation.operation.outputs
    if out_format not in ("npy", SAFETENSORS, ZARR):
        check_picture(slot.layout.data_type.dtype, computation.shape, out_format)
    total = computation.array.nbytes + slot.layout.size_in_bytes
    options: dict[str, Any] = {
        "backend": computation.backend,
        "device": computation.device,
        "feature_level": computation.level,
    }
    with progress_bar(total, quiet=quiet, kept=out_format == ZARR) as progress:
        if out_format == ZARR:
            with keeping(output):
                client.write_zarr(
                    computation.operation, computation.array, output, shape=computation.shape, progress=progress,
                    **options,
                )  # fmt: skip
        elif out_format in ("npy", SAFETENSORS):
            # Never whole in our memory: mapped in, streamed out.
            head = tensor_head(out_format, slot.name, slot.layout.data_type, computation.shape)
            blocks = client.stream(computation.operation, computation.array, progress=progress, **options)
            with destination(output) as file:
                write_blocks(file, head, blocks)
        else:
            array = client.run(computation.operation, computation.array, progress=progress, **options).reshape(
                computation.shape
            )
            content = encode_image(array, out_format)
            with destination(output) as file:
                file.write(content)


def tile(
    source: InputFile,
    *,
    repeats: Annotated[
        str,
        typer.Option(help="Copies per dimension, as in 1,1,3,3; for pictures rows and columns are enough, as in 3,3."),
    ],
    output: OutputFile = "-",
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    backend: BackendOption = None,
    device: DeviceOption = None,
    level: Level = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    quiet: Quiet = False,
) -> None:
    """Lay copies of an array or a picture side by side (DML_OPERATOR_TILE). A pipe gets the format of the input."""
    from ..calls.caller_arrays import tile_call
    from .command_messages import option_words, picture_notes
    from .files import read_array

    wanted = _output_format(output)
    copies = usage("--repeats", counts_of, re.sub("(?<=[0-9])x(?=[0-9])", ",", repeats))
    client = client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert)
    read = read_array(source)
    advice = "--repeats 2,3 makes 2 copies down and 3 across"
    with client, picture_notes([(source, read)], advice):
        if read.is_picture and read.array.ndim == 3 and len(copies) == 2:
            copies = (*copies, 1)
        elif read.is_picture and read.array.ndim == 3 and len(copies) == 1 and (wanted or read.format) != "npy":
            (count,) = copies
            raise InvalidParameter(
                f"--repeats {count} repeats the last dimension, which is the channels of a picture; for rows and "
                f"columns write --repeats {count},{count}"
            )
        if read.array.dtype.name == "complex128":
            raise InvalidParameter("tile takes no complex128; save the array as complex64, or its two parts as float64")
        with option_words(_TILE_WORDS):
            call = tile_call(read.array, copies, directml=level is not None)
        computation = _Computation(call.operation, call.array, call.shape, backend, device, level)
        _compute(client, computation, output, wanted or read.format, quiet=quiet)


def resample(
    source: InputFile,
    *,
    scale: Annotated[
        str | None, typer.Option(help="Factor for every axis of --axes, as in 2 or 0.5; or one for each, as in 2,1.5.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="Instead of --scale: width x height, as in 640x480; one number for all of --axes, as in 224 for a "
            "square; or one for each, as in 480,640."
        ),
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option(
            help="Axes to resize, as in -2,-1.  [default: rows and columns of a picture; all axes of an npy, where a "
            "number is given for each]"
        ),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="linear or nearest.", autocompletion=lambda: ["linear", "nearest"])
    ] = "linear",
    antialias: Annotated[
        bool, typer.Option("--antialias", help="Filter while shrinking, as Pillow and PyTorch do (ONNX Resize).")
    ] = False,
    antialias_directml: Annotated[
        bool, typer.Option("--antialias-directml", help="Filter while shrinking, as DirectML does (RESAMPLE3).")
    ] = False,
    output: OutputFile = "-",
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    backend: BackendOption = None,
    device: DeviceOption = None,
    level: Level = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    quiet: Quiet = False,
) -> None:
    """Resize an array or a picture (DML_OPERATOR_RESAMPLE2, or as --antialias says), pixel centres aligned."""
    from ..calls.resampling import DML_TYPES, resampling
    from .command_messages import option_words, picture_notes
    from .files import read_array

    wanted = _output_format(output)
    if (scale is None) == (size is None):
        raise typer.BadParameter("give exactly one of --scale and --size", param_hint="--scale")
    factors = None if scale is None else usage("--scale", factors_of, scale)
    counts = None if size is None else usage("--size", size_of, size)
    chosen = None if axes is None else usage("--axes", axes_of, axes)
    filtered = usage("--antialias", functools.partial(filter_of, level=level), (antialias, antialias_directml))
    kind = usage("--mode", functools.partial(mode_named, antialias=filtered), mode)
    client = client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert)
    read = read_array(source)
    if filtered is not True and read.array.dtype.name not in DML_TYPES:
        raise InvalidParameter(
            f"resample takes {', '.join(DML_TYPES)}, not {read.array.dtype.name}; convert the file, run a "
            "graph with Cast and Resize, or use a command that takes it and answers in the same type, with fractions "
            "of integers cut off: tensorpost onnx Resize IN -s mode=linear -s scales=2,2"
        )
    if chosen is None:
        option, lengths = ("--size", counts) if factors is None else ("--scale", factors)
        if not read.is_picture and lengths is not None and len(lengths) == 1:
            raise InvalidParameter(
                f"{option} is a single number, which holds for every axis in --axes; name them, as in --axes -2,-1 for "
                "the rows and columns of N, C, H, W, or --axes 0,1 for those of H, W, C"
            )
        chosen = (0, 1) if read.is_picture else tuple(range(read.array.ndim))
    if size is not None and "x" in size.lower() and len(chosen) != 2:
        raise InvalidParameter("width x height is for two axes; name them, rows first, as in --axes -2,-1")
    advice = "--axes 0,1, the default, are its rows and columns"
    with client, picture_notes([(source, read)], advice):
        with option_words(_RESAMPLE_WORDS):
            plan = resampling(
                read.array,
                scales=factors if factors is None or len(factors) != 1 else factors[0],
                sizes=counts if counts is None or len(counts) != 1 else counts[0],
                axes=chosen,
                mode=kind,
                antialias=filtered,
            )
        x = read.array.reshape(plan.sent_shape)
        computation = _Computation(plan.operation, x, plan.output_shape, backend, device, level)
        _compute(client, computation, output, wanted or read.format, quiet=quiet)


def run(
    file: Annotated[
        str,
        typer.Argument(
            metavar="OPERATOR",
            help="Name of a DirectML operator, as in join; or FILE.json, a document; input tensors may be left out.",
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[IN]...",
            help="npy, safetensors or npz files or pictures, in binding order; or one safetensors or npz file with the "
            "inputs' names; or @NAME, a held tensor.",
        ),
    ] = None,
    *,
    settings: Attributes = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="File for each output, or one .safetensors file for all: .npy, .safetensors, .zarr, a picture, or "
            ".bin, the bytes as DirectML lays them out; - for standard output.",
        ),
    ] = None,
    packed: Annotated[bool, typer.Option("--packed", help="Write only the elements of outputs with strides.")] = False,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    backend: BackendOption = None,
    device: DeviceOption = None,
    level: Level = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    rows: RowsOption = None,
    quiet: Quiet = False,
) -> None:
    """Run any operator on arrays or pictures. Outputs of any size are streamed to npy, safetensors or Zarr."""
    from .command_messages import picture_notes
    from .run_command import InputFiles, attributes_of, compute_outputs, described, described_operator

    if file.endswith(".onnx"):
        raise typer.BadParameter(
            f"{file[:100]} is a model, not an operator; run it with: "
            f"tensorpost model run {file[:100]} x=x.npy -o y=y.npy",
            param_hint="OPERATOR",
        )
    outputs, chosen = output or ["-"], rows_of(rows)
    formats = [_output_format(path, raw=True) for path in outputs]
    client = client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert)
    given = usage("--set", attributes_of, settings or [])
    document_file = file == "-" or file.endswith(".json")
    if document_file:
        if given:
            raise typer.BadParameter("the document contains the attributes; leave --set out", param_hint="--set")
        document = _read_document(file)
        if not isinstance(document, dict):
            raise InvalidParameter("an operator document must be a JSON object")
        given = cast("dict[str, Any]", document)
    with contextlib.ExitStack() as stack:
        stack.enter_context(client)
        files = InputFiles.read(inputs or (), client)
        stack.enter_context(picture_notes(files.sources, _LISTS, of_lists=True))
        operation, by_name = described(given, files) if document_file else described_operator(file, given, files)
        options: dict[str, Any] = {"backend": backend, "device": device, "feature_level": level}
        compute_outputs(client, operation, by_name, outputs, formats, options, quiet=quiet, packed=packed, rows=chosen)


def onnx(
    op_type: Annotated[str, typer.Argument(metavar="OP_TYPE", help="Name of an ONNX operator, as in Resize.")],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[IN]...",
            help="npy, safetensors or npz files or pictures: its tensors, in order; or one safetensors or npz file "
            "with their names; or @NAME, a held tensor.",
        ),
    ] = None,
    *,
    settings: Attributes = None,
    opset: Annotated[int | None, typer.Option(min=1, help="Opset.  [default: the newest]")] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="File for each output, or one .safetensors file for all; - for standard output.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    backend: BackendOption = None,
    device: DeviceOption = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    rows: RowsOption = None,
    quiet: Quiet = False,
) -> None:
    """Run any ONNX operator on arrays or pictures. Attributes and small inputs, such as scales, go into --set."""
    from .command_messages import picture_notes
    from .run_command import InputFiles, attributes_of, compute_outputs, described_node

    outputs, chosen = output or ["-"], rows_of(rows)
    formats = [_output_format(path) for path in outputs]
    client = client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert)
    given = usage("--set", attributes_of, settings or [])
    with contextlib.ExitStack() as stack:
        stack.enter_context(client)
        files = InputFiles.read(inputs or (), client)
        stack.enter_context(picture_notes(files.sources, _LISTS, of_lists=True))
        operation, by_name = described_node(op_type, opset, given, files)
        options: dict[str, Any] = {"backend": backend, "device": device}
        compute_outputs(client, operation, by_name, outputs, formats, options, quiet=quiet, rows=chosen)


def validate(
    file: Annotated[
        str, typer.Argument(metavar="FILE.json", help="An operator document or a graph; - for standard input.")
    ],
    *,
    level: Annotated[str, typer.Option(help="DirectML feature level to check against, 1_0 to 6_4.")] = "6_4",
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse fields that are left out, instead of filling them in.")
    ] = False,
    url: Annotated[str | None, typer.Option("--url", help="Ask this server instead of checking here, offline.")] = None,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    as_json: AsJson = False,
) -> None:
    """Check an operator, an ONNX node or a graph, and show every violation. Exit status 1 if any."""
    from ..descriptors.feature_levels import FeatureLevel

    wanted = usage("--level", FeatureLevel.parse, level)
    client = (
        None
        if url is None and uds is None
        else client_of(url or DEFAULT_URL, uds, api_key=api_key_file, cacert=cacert, cert=cert)
    )
    document = _read_document(file)
    if strict and _kind(document) == "node":
        raise InvalidParameter("--strict is for fields of DirectML's operators; leave it out for ONNX nodes")
    try:
        if client is None:
            sentence, lowest, filled_in = _judged_offline(document, wanted)
        else:
            with client:
                sentence, lowest, filled_in = _judged_by(client, document, wanted)
        if strict and filled_in:
            _refuse_filled_in(document, filled_in, wanted)
    except InvalidDescriptor as error:
        if not as_json:
            if _kind(document) == "graph" and any(v.code == "input-missing" for v in error.violations):
                raise InvalidParameter(
                    f"{file} has inputs whose sizes are names; name a file for each: tensorpost graph check {file} "
                    "NAME=FILE"
                ) from error
            raise
        _print_verdict(wanted, error.extra.get("lowest_feature_level"), error.violations)
        raise typer.Exit(1) from None
    if as_json:
        _print_verdict(wanted, lowest, (), filled_in)
        return
    typer.echo(sentence)
    if filled_in:
        typer.echo(f"filled in, since left out: {', '.join(filled_in)} (--strict refuses this)")


def _read_document(file: str) -> Any:
    from ..bodies.strict_json import read_json
    from .files import standard_input

    try:
        return read_json(standard_input().read() if file == "-" else Path(file).read_bytes())
    except InvalidJson as error:
        where = "standard input" if file == "-" else file
        error.detail = f"{where} is not the JSON document of an operator or ONNX node: {error.detail}"
        raise


def _has(document: object, member: str) -> bool:
    return isinstance(document, dict) and member in cast("dict[str, object]", document)


def _kind(document: object) -> str:
    """What a document says it is: `graph`, `node` or `operator`."""
    if _has(document, "nodes") or _has(document, "Nodes"):
        return "graph"
    return "node" if _has(document, "op_type") else "operator"


_Judged = tuple[str, str | None, Sequence[str]]
"""What to say of what is valid, the lowest feature level at which DirectML has it, and fields that were filled in."""


def _judged_offline(document: Any, level: FeatureLevel) -> _Judged:
    """What a server would say, from the same rules.

    Raises:
        InvalidDescriptor: a rule is broken, or the lowest level is below what the operation needs; paths start at the
            document's root.
    """
    from .. import descriptors as dml

    if _kind(document) == "graph":
        from ..graphs.graph_document import read_graph
        from ..graphs.omitted_fields import omitted_fields
        from .graph_commands import level_sentence

        graph = read_graph(document, None, level=level)
        return *level_sentence(graph, level), [name for each in omitted_fields(document, graph) for name in each.names]
    if _kind(document) == "node":
        from ..onnx.bounded_node import node_class

        return *_judged(node_class(document["op_type"]).from_json(document), level), ()
    from ..descriptors.documents import fields_filled_in, operator_members

    desc = dml.parse_operator(document, complete=True)
    try:
        desc.validate_for(level)
    except UnsupportedAtLevel as error:
        lowest = desc.lowest_feature_level()
        seen_from_root = error.prefixed(operator_members(document)[1])
        seen_from_root.extra["lowest_feature_level"] = None if lowest is None else str(lowest)
        raise seen_from_root from None
    return *_judged(desc, level), fields_filled_in(document, desc)


def _judged_by(client: Client, document: Any, level: FeatureLevel) -> _Judged:
    """What a server says, which knows the cost too."""
    found = client.validate(document, feature_level=level)
    if found.operator is not None:
        return *_judged(found.operator, level), found.filled_in
    lowest = None if found.lowest_feature_level is None else str(found.lowest_feature_level)
    cost = found.document.get("cost")
    sentence = f"valid at feature level {level} (graph of {len(found.document['nodes'])} nodes; lowest level "
    return f"{sentence}{lowest or '-'}){'; ' + str(cost['summary']) if cost else ''}", lowest, found.filled_in


def _refuse_filled_in(document: Any, filled_in: Sequence[str], level: FeatureLevel) -> None:
    if _kind(document) == "graph":
        from ..graphs.graph_document import read_graph
        from ..graphs.omitted_fields import omitted_fields

        omitted = omitted_fields(document, read_graph(document, None, level=level))
        raise InvalidDescriptor.of([violation for each in omitted for violation in each.violations])
    from .. import descriptors as dml
    from ..descriptors.documents import left_out, operator_members

    type_member, desc_member = operator_members(document)
    name = dml.operator_class(document[type_member]).operator_type
    raise InvalidDescriptor.of(left_out(desc_member, filled_in, name))


def _judged(operation: dml.OperatorDesc | OnnxNode, level: FeatureLevel) -> tuple[str, str | None]:
    """What to say of a valid operation, and the lowest feature level at which DirectML has it; None if it has not."""
    from .. import descriptors as dml
    from ..onnx import lower  # with all of the descriptors that it makes

    if isinstance(operation, dml.OperatorDesc):
        lowest = str(operation.lowest_feature_level())
        return f"valid at feature level {level} (DML_OPERATOR_{operation.operator_type}; lowest level {lowest})", lowest
    lowering = lower(operation, level)
    sentence = f"valid {operation.schema.name}; in DirectML {level}: {lowering.verdict.value} ({lowering.reason})"
    return sentence, str(lowering.descriptor.lowest_feature_level()) if lowering.descriptor else None


def _print_verdict(
    level: FeatureLevel, lowest: str | None, violations: Sequence[Violation], filled_in: Sequence[str] = ()
) -> None:
    verdict = {
        "valid": not violations,
        "feature_level": str(level),
        "lowest_feature_level": lowest,
        "violations": [{**violation.to_json(), "path": place_of(violation)} for violation in violations],
        "filled_in": list(filled_in),
    }
    print_json(verdict)
