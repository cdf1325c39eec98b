"""`tensorpost model`: run, check and show an ONNX model, which is sent as a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from ..network.options import DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL
from ..values.problems import InvalidParameter, counted
from .command_options import (
    CaCert,
    Cert,
    DeviceOption,
    KeyFile,
    Quiet,
    RowsOption,
    Silence,
    Uds,
    Url,
    client_of,
    counts_of,
    rows_of,
    usage,
)
from .graph_commands import (
    TextFile,
    arrays_to_files,
    declared_array,
    named_files,
    print_nodes,
    run_to_files,
    show_graph,
)
from .tensor_commands import held_named
from .terminal import print_table

if TYPE_CHECKING:  # for annotations only: NumPy takes long to load, and --help needs none of it
    from ..values.graph import Graph

model = typer.Typer(name="model", help="Run, check or show an ONNX model.", no_args_is_help=True)

ModelFile = Annotated[str, typer.Argument(metavar="MODEL.onnx", help="The model; see docs/models.md.")]
ModelBackend = Annotated[
    str | None,
    typer.Option(
        help="Backend to use; onnxruntime has ONNX Runtime compute the whole model.  [default: the server's choice]",
        autocompletion=lambda: ["auto", "numba", "numpy", "cuda", "onnxruntime"],
    ),
]
SizesByName = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=SIZES...]", help="Sizes of an input whose sizes are names in the model, as in x=1,3,224,224."
    ),
]


@model.command(epilog="Example: tensorpost model run model.onnx x=x.npy -o y=y.npy")
def run(
    file: ModelFile,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=FILE...",
            help="A file for each input of the model: npy, safetensors or a picture; or @NAME, a held tensor.",
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
    backend: ModelBackend = None,
    device: DeviceOption = None,
    rows: RowsOption = None,
    quiet: Quiet = False,
) -> None:
    """Run a model with inputs from files, and write the outputs that are named."""
    from ..calls.model_calls import SentModel, load_model, model_request  # operators load when they are named
    from .files import read_array

    targets, chosen = dict(named_files(output, "y=y.npy")), rows_of(rows)
    read, sent = load_model(file), named_files(inputs, "x=x.npy")
    sizes = {tensor.name: tensor.sizes for tensor in read.inputs}
    arrays = {
        name: declared_array(name, read_array(path), sizes.get(name), "model")
        for name, path in sent
        if not path.startswith("@")
    }
    options: dict[str, Any] = {"backend": backend, "device": device}
    with client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert) as client:
        arrays |= {name: cast("Any", held_named(client, path)) for name, path in sent if path.startswith("@")}
        call = model_request(file, arrays, [*targets], read)
        if isinstance(call, SentModel):  # the answer says the sizes
            arrays_to_files(client.run_model(file, arrays, [*targets], rows=chosen, **options), targets)
        else:
            run_to_files(client, call.document, call.arrays, targets, options, quiet=quiet, rows=chosen)


@model.command(epilog="Example: tensorpost model check model.onnx x=1,3,224,224")
def check(file: ModelFile, sizes: SizesByName = None) -> None:
    """Check a model without a server; print the nodes that cannot be computed, or the outputs of each node."""
    first = _read(file, sizes)
    print_nodes(first.graph)
    if first.rest:
        typer.echo(f"then {first.rest}")


@model.command(epilog="Example: tensorpost model show model.onnx x=1,3,224,224 -o model.svg")
def show(file: ModelFile, sizes: SizesByName = None, *, output: TextFile = None) -> None:
    """Show a model's inputs and outputs; with sizes, also each node; with -o, as an SVG picture."""
    from ..calls.model_calls import load_model  # operators load when they are named
    from ..graphs.model_graph import described

    if sizes or output is not None:
        first = _read(file, sizes)
        show_graph(first.graph, output)
        if first.rest and output is None:
            typer.echo(f"then {first.rest}")
        return
    read = load_model(file)
    rows = [("input", tensor.name, described(tensor)) for tensor in read.inputs]
    rows += [("output", tensor.name, described(tensor)) for tensor in read.outputs]
    by = f", written by {read.producer}" if read.producer else ""
    rows.append(("model", file, f"{len(read.nodes)} nodes, opset {read.opset}, IR version {read.ir_version}{by}"))
    print_table(("what", "name", "is"), rows)


class _CheckedGraph(NamedTuple):
    """The graph of a model, or its first part, and in words what follows; empty if nothing does."""

    graph: Graph
    rest: str = ""


def _read(file: str, sizes: Sequence[str] | None) -> _CheckedGraph:
    from ..calls.model_calls import declared_layouts, load_model  # operators load when they are named
    from ..graphs.graph_document import MOST_NODES, read_graph
    from ..graphs.model_graph import ModelStage, model_stage

    read = load_model(file)
    given = {
        name: usage(name, lambda text: counts_of(text, "one per dimension, as in x=1,3,224,224"), text)
        for name, text in named_files(sizes or (), "x=1,3,224,224")
    }
    found, rest = model_stage(read, declared_layouts(read, given)), ""
    if isinstance(found, ModelStage):
        made = ", ".join([each.name for each in found.results])
        rest = f"{counted(len(found.rest.nodes), 'node')}, whose sizes follow from the elements of these: {made}"
    graph = found.graph if isinstance(found, ModelStage) else found
    nodes: Sequence[Any] = graph.document["nodes"]
    if not nodes:
        raise InvalidParameter(f"{file} computes nothing from its inputs")
    return _CheckedGraph(read_graph(graph.document, None, most_nodes=max(MOST_NODES, len(nodes))), rest)
