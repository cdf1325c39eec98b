"""`tensorpost graph store|call|list|delete`: graphs and models that a server keeps."""

from __future__ import annotations

from typing import Annotated

import typer

from ..network.options import DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL
from ..values.problems import InvalidParameter
from .command_options import (
    BackendOption,
    CaCert,
    Cert,
    DeviceOption,
    KeyFile,
    RowsOption,
    Silence,
    Uds,
    Url,
    client_of,
    rows_of,
)
from .graph_commands import graph, named_files
from .tensor_commands import held_named
from .terminal import print_table, size_text

StoredName = Annotated[str, typer.Argument(metavar="NAME", help="The stored graph's name on the server.")]
StoredVersion = Annotated[
    int | None, typer.Option("--version", metavar="N", help="The number of its version. [default: the newest]")
]


@graph.command(epilog="Example: tensorpost graph store examples/pipeline.json --name small")
def store(
    document: Annotated[
        str, typer.Argument(metavar="FILE", help="The graph, a JSON file; or an ONNX model, a file that ends in .onnx.")
    ],
    weights: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=FILE...]", help="Files of inputs that are stored with the graph."),
    ] = None,
    *,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Its name on the server. [default: the SHA-256 of what is stored]"),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(
            "--version",
            metavar="N",
            help="Store it as this version, beside others of the name. [default: as 1, in place of all of them]",
        ),
    ] = None,
    max_batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="ROWS", help="Compute calls that wait together, up to so many rows. [default: each by itself]"
        ),
    ] = None,
    max_queue_delay_microseconds: Annotated[
        int, typer.Option(metavar="MICROSECONDS", help="How long a call may wait for others although nothing runs.")
    ] = 0,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
) -> None:
    """Store a graph or an ONNX model on the server; calls of it send nothing but tensors."""
    kept = dict(named_files(weights or [], "mean=mean.npy"))
    with client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert) as client:
        stored = client.store(
            document, name, weights=kept or None, version=version, max_batch_size=max_batch_size,
            max_queue_delay_microseconds=max_queue_delay_microseconds,
        )  # fmt: skip
    shown = stored.name if version is None else f"{stored.name}, version {version}"
    typer.echo(f"{shown}: inputs {', '.join(stored.inputs)}; outputs {', '.join(stored.outputs)}; "
               f"{size_text(stored.size_in_bytes)} on the server")  # fmt: skip


@graph.command(epilog="Example: tensorpost graph call small photo=cat.png -o image=image.npy")
def call(
    name: StoredName,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=FILE...", help="A file for each input: npy or a picture; or @NAME, a held tensor."
        ),
    ],
    *,
    output: Annotated[
        list[str],
        typer.Option("-o", "--output", metavar="NAME=FILE", help="A file for an output; may be repeated."),
    ],
    version: StoredVersion = None,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    backend: BackendOption = None,
    device: DeviceOption = None,
    rows: RowsOption = None,
) -> None:
    """Call a stored graph with inputs from files, and write its outputs as npy or pictures."""
    import numpy as np

    from ..bodies.images import encode_image
    from ..bodies.npy import encode_npy_head
    from ..values.datatypes import data_type
    from .files import ZARR, check_destination, check_picture, destination, format_of, picture_shape

    targets, chosen = dict(named_files(output, "image=image.npy")), rows_of(rows)
    formats = {each: format_of(path) or "npy" for each, path in targets.items()}
    if ZARR in formats.values():
        raise InvalidParameter("outputs of a graph are written as npy or pictures; end -o in .npy")
    for path in targets.values():
        check_destination(path)
    sent = dict(named_files(inputs, "photo=cat.png"))
    with client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert) as client:
        stored = client.stored_graph(name, version)
        unknown = [each for each in targets if each not in stored.outputs]
        if unknown:
            raise InvalidParameter(
                f"the stored graph {name!r} has the outputs {', '.join(stored.outputs)}, and -o names {unknown[0]!r}"
            )
        values = {each: held_named(client, path) if path.startswith("@") else path for each, path in sent.items()}
        found = client.run_stored(stored, values, backend=backend, device=device, rows=chosen)
    for each, path in targets.items():
        array = found[each]
        if formats[each] != "npy":
            check_picture(array.dtype, picture_shape(array.shape), formats[each])
        with destination(path) as file:
            if formats[each] == "npy":
                file.write(encode_npy_head(data_type(array.dtype), array.shape))
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            else:
                file.write(encode_image(array.reshape(picture_shape(array.shape)), formats[each]))


@graph.command("list", epilog="Example: tensorpost graph list")
def list_stored(
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
) -> None:
    """List the stored graphs that may be called: those of this key, and the server's own."""
    with client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert) as client:
        rows = [
            (
                each.name,
                str(each.version),
                each.kind,
                ", ".join(each.inputs),
                ", ".join(each.outputs),
                size_text(each.size_in_bytes),
            )
            for each in client.stored_graphs()
        ]
    if not rows:
        typer.echo("no graph is stored; tensorpost graph store FILE stores one")
        return
    print_table(("name", "version", "kind", "inputs", "outputs", "bytes"), rows)


@graph.command(epilog="Example: tensorpost graph delete small")
def delete(
    name: StoredName,
    *,
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="N", help="The only version to delete. [default: all of them]"),
    ] = None,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
) -> None:
    """Delete a stored graph."""
    with client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert) as client:
        client.delete_graph(name, version)
    typer.echo(f"{name} is deleted" if version is None else f"version {version} of {name} is deleted")
