"""`tensorpost graph`: run, check, show and translate a pipeline of a JSON file, with arrays and pictures from files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ..network.options import DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL
from ..values.problems import InvalidParameter
from .command_options import (
    BackendOption,
    CaCert,
    Cert,
    DeviceOption,
    KeyFile,
    Level,
    Quiet,
    RowsOption,
    Silence,
    Uds,
    Url,
    client_of,
    rows_of,
    usage,
)
from .tensor_commands import held_named
from .terminal import keeping, print_table, progress_bar, size_text

if TYPE_CHECKING:  # for annotations only: NumPy takes long to load, and --help needs none of it
    from numpy.typing import NDArray

    from ..bodies.picture_inputs import DeclaredSizes
    from ..client import Client
    from ..descriptors.feature_levels import FeatureLevel
    from ..values.graph import Graph, Ref
    from .files import Source

graph = typer.Typer(
    name="graph", help="Run, check, show or translate a graph: several operators in one request.", no_args_is_help=True
)

GraphFile = Annotated[str, typer.Argument(metavar="GRAPH.json", help="The graph; see docs/graphs.md.")]
SizesOf = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=FILE...]", help="Files of the graph's inputs, if the graph has names for sizes."),
]
TextFile = Annotated[
    str | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write it. [default: standard output]")
]


@graph.command(epilog="Example: tensorpost graph run examples/pipeline.json photo=cat.png -o image=image.npy")
def run(
    document: GraphFile,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=FILE...",
            help="A file for each input of the graph: npy, safetensors or a picture; or @NAME, a held tensor.",
        ),
    ],
    *,
    output: Annotated[
        list[str],
        typer.Option("-o", "--output", metavar="NAME=FILE", help="A file for an output; may be repeated."),
    ],
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    backend: BackendOption = None,
    device: DeviceOption = None,
    level: Level = None,
    rows: RowsOption = None,
    quiet: Quiet = False,
) -> None:
    """Run a graph with inputs from files, and write its outputs; npy, safetensors and Zarr are streamed to disk."""
    from ..calls.graph_calls import graph_document  # operators load when they are named
    from .files import read_array

    graph_of, chosen = graph_document(document), rows_of(rows)
    sent = named_files(inputs, "photo=cat.png")
    arrays = {name: _array(graph_of, name, read_array(path)) for name, path in sent if not path.startswith("@")}
    options: dict[str, Any] = {"backend": backend, "device": device, "feature_level": level}
    with client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert) as client:
        arrays |= {name: cast("Any", held_named(client, path)) for name, path in sent if path.startswith("@")}
        targets = dict(named_files(output, "image=image.npy"))
        run_to_files(client, graph_of, arrays, targets, options, quiet=quiet, rows=chosen)


def run_to_files(
    client: Client, graph_of: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], targets: Mapping[str, str],
    options: Mapping[str, Any], *, quiet: bool, rows: slice | None = None,
) -> None:  # fmt: skip
    """Run a graph and write its outputs to files.

    Args:
        client: sends it.
        graph_of: the graph's document.
        arrays: what its inputs are.
        targets: a file for each output.
        options: keyword arguments of `Client.stream_graph`.
        quiet: whether no progress is shown.
        rows: only these rows of the only output.

    Raises:
        InvalidParameter: an output has no file, or a file no output; it cannot hold the output; or there are no such
            rows.
    """
    from ..bodies.images import encode_image
    from ..calls.graph_calls import graph_request  # operators load when they are named
    from ..calls.output_part import part_template
    from .command_messages import ROWS_WORDS, option_words
    from .files import (
        SAFETENSORS,
        ZARR,
        check_destination,
        check_picture,
        check_row_format,
        destination,
        format_of,
        picture_shape,
        tensor_head,
        write_blocks,
    )

    template = graph_request(graph_of, arrays).template
    if rows is not None:
        with option_words(ROWS_WORDS):
            template, _ = part_template(template, rows)
    slots = {slot.name: slot for slot in template.outputs}
    if targets.keys() != slots.keys():
        raise InvalidParameter(
            f"the graph has the outputs {', '.join(slots)}, and -o names {', '.join(targets)}; name a file for each"
        )
    formats = {name: format_of(path) or "npy" for name, path in targets.items()}
    if rows is not None:
        check_row_format(*formats.values())
    is_zarr = ZARR in formats.values()
    if is_zarr and len(targets) != 1:
        raise InvalidParameter("Zarr is written for graphs with one output only; end each -o in .npy")
    for name, path in targets.items():
        check_destination(path)
        if formats[name] not in ("npy", SAFETENSORS, ZARR):
            check_picture(slots[name].layout.data_type.dtype, picture_shape(slots[name].layout.sizes), formats[name])
    total = sum([slot.layout.size_in_bytes for slot in (*template.inputs, *template.outputs)])
    with progress_bar(total, quiet=quiet, kept=is_zarr) as progress:
        if is_zarr:
            (path,) = targets.values()
            with keeping(path):
                client.write_zarr(graph_of, arrays, path, progress=progress, **options)
            return
        blocks = client.stream_graph(graph_of, arrays, progress=progress, rows=rows, **options)
        for name, group in groupby(blocks, lambda block: cast("str", block.output)):
            layout, data = slots[name].layout, (block.data for block in group)
            with destination(targets[name]) as file:
                if formats[name] in ("npy", SAFETENSORS):
                    write_blocks(file, tensor_head(formats[name], name, layout.data_type, layout.sizes), data)
                else:
                    pixels = layout.view(b"".join(data)).reshape(picture_shape(layout.sizes))
                    file.write(encode_image(pixels, formats[name]))


def arrays_to_files(arrays: Mapping[str, NDArray[Any]], targets: Mapping[str, str]) -> None:
    """Write arrays to files, each to that of its name.

    Raises:
        InvalidParameter: a file cannot hold its array.
    """
    import numpy as np  # few commands need it

    from ..bodies.images import encode_image
    from ..values.datatypes import data_type
    from .files import (
        SAFETENSORS,
        ZARR,
        check_picture,
        destination,
        format_of,
        picture_shape,
        tensor_head,
        write_blocks,
    )

    for name, path in targets.items():
        array, kind = arrays[name], format_of(path) or "npy"
        if kind == ZARR:
            raise InvalidParameter(
                f"the sizes of {name!r} follow from elements, and Zarr needs them before; write .npy"
            )
        if kind not in ("npy", SAFETENSORS):
            check_picture(array.dtype, picture_shape(array.shape), kind)
        with destination(path) as file:
            if kind in ("npy", SAFETENSORS):
                flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                write_blocks(file, tensor_head(kind, name, data_type(array.dtype), array.shape), [flat])
            else:
                file.write(encode_image(array.reshape(picture_shape(array.shape)), kind))


@graph.command(epilog="Example: tensorpost graph check examples/pipeline.json photo=cat.png")
def check(
    document: GraphFile,
    inputs: SizesOf = None,
    *,
    level: Annotated[str, typer.Option(help="DirectML feature level to check against, 1_0 to 6_4.")] = "6_4",
) -> None:
    """Check a graph without a server; print every broken rule with its node, or its feature level and its outputs."""
    from ..descriptors.feature_levels import FeatureLevel

    wanted = usage("--level", FeatureLevel.parse, level)
    read = _read(document, inputs, wanted)
    typer.echo(level_sentence(read, wanted)[0])
    print_nodes(read)


def level_sentence(read: Graph, level: FeatureLevel) -> tuple[str, str | None]:
    """What to say of a valid graph, and its lowest feature level; None if all of its nodes are ONNX's."""
    from ..graphs.graph_levels import lowest_level_of

    lowest = lowest_level_of(read)
    sentence = f"valid at feature level {level} (graph of {len(read.nodes)} nodes; lowest level {lowest or '-'})"
    return sentence, None if lowest is None else str(lowest)


def print_nodes(read: Graph) -> None:
    """Print the tensors that each node makes, and what computes it."""
    from ..onnx.proto_node import is_by_onnx_runtime  # operators load when they are named

    rows = [
        (node.name, node.operation.name, slot.layout.data_type.numpy_name, "x".join(map(str, slot.layout.sizes)) or "-",
         size_text(slot.layout.size_in_bytes), "ONNX Runtime" if is_by_onnx_runtime(node.operation) else "")
        for node in read.nodes for slot in node.operation.outputs
    ]  # fmt: skip
    print_table(("node", "operator", "type", "sizes", "bytes", "by"), rows)


@graph.command(epilog="Example: tensorpost graph show examples/pipeline.json photo=cat.png -o pipeline.svg")
def show(document: GraphFile, inputs: SizesOf = None, *, output: TextFile = None) -> None:
    """Show the inputs and outputs of each node of a graph; with -o as an SVG picture."""
    show_graph(_read(document, inputs), output)


def show_graph(read: Graph, output: str | None) -> None:
    """Print what each node of a graph reads and makes, or write a picture of it."""
    from ..graphs.graph_picture import shape_text, svg_of  # operators load when they are named
    from .files import destination

    if output is not None:
        if output != "-" and not output.endswith(".svg"):
            raise InvalidParameter(
                f"the picture of a graph is SVG, and -o is {output!r}; write a name that ends in .svg"
            )
        with destination(output) as file:
            file.write(svg_of(read).encode())
        return
    names = [node.name for node in read.nodes]
    rows = [("input", slot.name, "", shape_text(slot.layout)) for slot in read.inputs]
    rows += [("constant", slot.name, "", shape_text(slot.layout)) for slot, _ in read.constants]
    for node in read.nodes:
        reads = ", ".join([_ref_text(read, names, ref) for ref in node.inputs])
        made = "; ".join([shape_text(slot.layout) for slot in node.operation.outputs])
        rows.append((node.operation.name, node.name, reads, made))
    for slot, ref in zip(read.output_slots, read.outputs, strict=True):
        rows.append(("output", slot.name, _ref_text(read, names, ref), shape_text(slot.layout)))
    print_table(("what", "name", "reads", "makes"), rows)


@graph.command("to-dml", epilog="Example: tensorpost graph to-dml examples/pipeline.json photo=cat.png -o dml.json")
def to_dml(document: GraphFile, inputs: SizesOf = None, *, output: TextFile = None) -> None:
    """Print a graph as DirectML's structs, DML_GRAPH_DESC, as JSON."""
    from ..graphs.graph_wordings import dml_graph_of  # operators load when they are named

    _write_json(dml_graph_of(_read(document, inputs)), output)


@graph.command("from-dml", epilog="Example: tensorpost graph from-dml dml.json -o graph.json")
def from_dml(document: GraphFile, *, output: TextFile = None) -> None:
    """Print a graph of DirectML's structs as a document with names."""
    from ..graphs.graph_wordings import document_of  # operators load when they are named

    _write_json(document_of(_read(document, None)), output)


def _read(document: str, inputs: Sequence[str] | None, level: FeatureLevel | None = None) -> Graph:
    """The graph for the files of its inputs, or for the sizes that it declares."""
    from ..calls.graph_calls import graph_document, read_for  # operators load when they are named
    from .files import read_array

    graph_of, options = graph_document(document), {} if level is None else {"level": level}
    if not inputs:
        return read_for(graph_of, None, **options)
    return read_for(
        graph_of,
        {name: _array(graph_of, name, read_array(path)) for name, path in named_files(inputs, "photo=cat.png")},
        **options,
    )


def _ref_text(graph_of: Graph, names: Sequence[str], ref: Ref) -> str:
    from ..values.graph import GraphConstant, GraphInput, NodeOutput

    match ref:
        case GraphInput(index):
            return graph_of.inputs[index].name
        case GraphConstant(index):
            return graph_of.constants[index][0].name
        case NodeOutput(number, index):
            slots = graph_of.nodes[number].operation.outputs
            return names[number] if len(slots) == 1 else f"{names[number]}.{slots[index].name}"


def _write_json(value: Mapping[str, Any], output: str | None) -> None:
    text = json.dumps(value, indent=1) + "\n"
    if output is None:
        typer.echo(text, nl=False)
        return
    from .files import destination

    with destination(output) as file:
        file.write(text.encode())


def named_files(texts: Sequence[str], example: str) -> list[tuple[str, str]]:
    """The names and files of `name=file`.

    Raises:
        InvalidParameter: one has no equals sign, or two have the same name.
    """
    found: list[tuple[str, str]] = []
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise InvalidParameter(f"{text[:60]!r} names no file; write NAME=FILE, as in {example}")
        if name in dict(found):
            raise InvalidParameter(f"{name!r} has two files; name each input or output once")
        found.append((name, path))
    return found


def declared_array(name: str, source: Source, sizes: DeclaredSizes, what: str) -> NDArray[Any]:
    """What a file holds; a picture gets a batch and channels where its input has them.

    Raises:
        InvalidDescriptor: a picture has another number of channels.
    """
    from ..bodies.picture_inputs import declared_picture

    return declared_picture(name, source.array, sizes, what) if source.is_picture else source.array


def _array(document: Mapping[str, Any], name: str, source: Source) -> NDArray[Any]:
    from ..graphs.graph_document import declared_sizes  # operators load when they are named

    return declared_array(name, source, declared_sizes(document).get(name), "graph")
