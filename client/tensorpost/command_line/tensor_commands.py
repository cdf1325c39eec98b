"""`tensorpost tensor put|get|list|delete`: tensors that a server holds, and `@NAME` in the place of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..network.options import DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL
from ..values.problems import InvalidFrame, InvalidParameter, TensorExists
from .command_options import CaCert, Cert, KeyFile, Silence, Uds, Url, client_of, counts_of, usage
from .terminal import print_table, size_text

if TYPE_CHECKING:  # for annotations only: NumPy takes long to load, and --help needs none of it
    from numpy.typing import NDArray

    from ..calls.held_tensors import HeldTensor
    from ..client import Client
    from ..values.datatypes import DataType

tensor = typer.Typer(
    name="tensor",
    help="Tensors that a server holds; run, onnx, graph run and model run take @NAME as a file.",
    no_args_is_help=True,
)

HeldName = Annotated[str, typer.Argument(metavar="NAME", help="The tensor's name on the server.")]


def held_named(client: Client, text: str) -> HeldTensor:
    """The held tensor that `@mask` or `@mask[0:10,:]` means.

    Raises:
        InvalidParameter: the brackets do not end, or the tensor has no such part.
        TensorNotFound: there is no such tensor.
    """
    from ..values.tensor_box import read_box

    name, bracket, box = text.removeprefix("@").partition("[")
    if not name or (bracket and not box.endswith("]")):
        raise InvalidParameter(f"{text[:60]!r} names no held tensor; write @NAME, or @NAME[0:10,:] for a part of it")
    held = client.tensor(name)
    return held.part(read_box(box.removesuffix("]"))) if bracket else held


@tensor.command(epilog="Example: tensorpost tensor put mask.npy mask")
def put(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="The tensor: npy, safetensors or a picture; with --data-type and --sizes raw bytes."
        ),
    ],
    name: HeldName,
    *,
    data_type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="FILE has elements of this type and nothing else, row-major and little-endian: float32, FLOAT32, F32.",
        ),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(metavar="SIZES", help="With --data-type: elements along each dimension, as in 2,3.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a held tensor of this name.")] = False,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
) -> None:
    """Send a tensor that the server is to hold; calls then refer to it as @NAME."""
    array = _read(source, data_type, sizes)
    with client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert) as client:
        try:
            held = client.put(array, name, replace=replace)
        except TensorExists as error:
            error.detail = f"there is a held tensor {name!r} already; write --replace to replace it, or another name"
            raise
    typer.echo(f"{held.name}: {held.dtype} of {_sizes(held)}, {size_text(held.nbytes)} on the server")


@tensor.command(epilog="Example: tensorpost tensor get volume slice.npy --box :,120")
def get(
    name: HeldName,
    output: Annotated[str, typer.Argument(metavar="OUT", help="Where to write it: a file that ends in .npy.")],
    *,
    box: Annotated[
        str, typer.Option(metavar="BOX", help="A part, as NumPy slices it: 0:10,:,::2 or 5. [default: all]")
    ] = "",
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
) -> None:
    """Read a held tensor, or a part of it, into an npy file or a picture."""
    import numpy as np

    from ..bodies.images import encode_image
    from ..values.tensor_box import read_box
    from .files import SAFETENSORS, ZARR, check_destination, check_picture, destination, format_of, picture_shape

    file_format = format_of(output) or "npy"
    if file_format in (ZARR, SAFETENSORS):
        raise InvalidParameter("a held tensor is written as npy or as a picture; end OUT in .npy")
    check_destination(output)
    items = read_box(box)
    with client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert) as client:
        array = client.get_tensor(name, items or None)
    if file_format != "npy":
        check_picture(array.dtype, picture_shape(array.shape), file_format)
    with destination(output) as file:
        if file_format == "npy":
            np.save(file, array)
        else:
            file.write(encode_image(array.reshape(picture_shape(array.shape)), file_format))


@tensor.command("list", epilog="Example: tensorpost tensor list")
def list_tensors(
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
) -> None:
    """List the held tensors of this key."""
    with client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert) as client:
        rows = [
            (each.name, str(each.dtype), _sizes(each), size_text(each.nbytes), each.device) for each in client.tensors()
        ]
    if not rows:
        typer.echo("no tensor is held; tensorpost tensor put FILE NAME sends one")
        return
    print_table(("name", "type", "sizes", "bytes", "device"), rows)


@tensor.command(epilog="Example: tensorpost tensor delete mask")
def delete(
    name: HeldName,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
) -> None:
    """Free a held tensor."""
    with client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert) as client:
        client.delete_tensor(name)
    typer.echo(f"{name} is deleted")


def _sizes(held: HeldTensor) -> str:
    return "x".join(map(str, held.shape)) or "-"


def _read(source: str, data_type: str | None, sizes: str | None) -> NDArray[Any]:
    """The array of a file: of raw bytes if a type is given."""
    from .files import read_array, read_raw

    if data_type is None:
        if sizes is not None:
            raise InvalidParameter("--sizes describes raw bytes; give their --data-type too, as in --data-type float32")
        try:
            return read_array(source).array
        except InvalidFrame as error:
            if "is neither npy" in error.detail:
                error.detail += "; of raw bytes say what they are: --data-type float32 --sizes 2,3"
            raise
    if sizes is None:
        raise InvalidParameter("--data-type describes raw bytes; give their --sizes too, as in --sizes 2,3")
    row = usage("--data-type", _type_of, data_type)
    shape = usage("--sizes", lambda text: counts_of(text, "one per dimension, as in 2,3"), sizes)
    return read_raw(source, row, shape)


def _type_of(word: str) -> DataType:
    from ..values.datatypes import type_named

    try:
        row = type_named(word)
    except KeyError as error:
        raise InvalidParameter(error.args[0]) from None
    if not row.item_size:
        raise InvalidParameter("texts have no fixed number of bytes; a held tensor has numbers or booleans")
    return row
