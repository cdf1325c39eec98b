"""`tensorpost preprocess`: photographs to one file, the batch that a model reads."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ..network.options import DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL
from ..values.problems import InvalidParameter
from .command_options import (
    BackendOption,
    CaCert,
    Cert,
    DeviceOption,
    KeyFile,
    OutputFile,
    Quiet,
    Silence,
    Uds,
    Url,
    client_of,
    size_of,
    usage,
)

_SIDES = "224; rows and columns, as in 224,320; or width x height, as in 320x224"


def _numbers(option: str, text: str | None) -> tuple[float, ...] | float | None:
    """One number, or several with commas."""
    if text is None:
        return None
    found = usage(option, _floats, text)
    return found[0] if len(found) == 1 else found


def _floats(text: str) -> tuple[float, ...]:
    try:
        return tuple([float(part) for part in text.split(",")])
    except ValueError:
        raise InvalidParameter(f"{text[:60]!r} is not a number or a list of numbers, as in 0.485,0.456,0.406") from None


def preprocess(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="PNG, JPEG, WebP or AVIF files.")],
    *,
    output: OutputFile,
    size: Annotated[str, typer.Option(help=f"Sides after the resize: {_SIDES}. With --crop the shorter side.")] = "224",
    crop: Annotated[str | None, typer.Option(help=f"The middle part that is kept: {_SIDES}.")] = None,
    mean: Annotated[
        str | None, typer.Option(help="Subtracted from pixels of 0 to 1: one number, or three with commas.")
    ] = None,
    std: Annotated[str | None, typer.Option(help="Divided by: one number, or three with commas.")] = None,
    layout: Annotated[str, typer.Option(help="NCHW or NHWC.")] = "NCHW",
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    in_flight: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 8,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    backend: BackendOption = None,
    device: DeviceOption = None,
    quiet: Quiet = False,
) -> None:
    """Prepare photographs for a model: resized with a filter, scaled, in one npy or safetensors file."""
    from ..calls.progress_bar import ProgressBar
    from ..values.datatypes import data_type
    from .files import SAFETENSORS, check_destination, destination, format_of, tensor_head, write_blocks

    if usage("--output", format_of, output) not in (None, "npy", SAFETENSORS):
        raise InvalidParameter("preprocess writes an npy or a safetensors file; end -o in .npy or .safetensors")
    check_destination(output)
    sides = usage("--size", lambda text: size_of(text, _SIDES), size)
    part = None if crop is None else usage("--crop", lambda text: size_of(text, _SIDES), crop)
    bar = None if quiet or not sys.stderr.isatty() else ProgressBar()
    options: dict[str, Any] = {
        "size": sides[0] if len(sides) == 1 else sides,
        "crop": part[0] if part is not None and len(part) == 1 else part,
        "mean": _numbers("--mean", mean),
        "std": _numbers("--std", std),
        "layout": layout,
        "dtype": dtype,
        "in_flight": in_flight,
        "backend": backend,
        "device": device,
        "progress": bar,
    }
    with client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert) as client:
        batch = client.preprocess(files, **options)
    with destination(output) as file:
        head = tensor_head(format_of(output), "image", data_type(batch.dtype), batch.shape)
        write_blocks(file, head, [batch.reshape(-1).view("uint8").data])
