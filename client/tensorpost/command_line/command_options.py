"""Options that several commands have, and what reads their values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ..network.options import DEFAULT_RETRIES, DEFAULT_TIMEOUT_SECONDS, URL_VARIABLE, Timeout
from ..values.problems import InvalidParameter

if TYPE_CHECKING:  # for annotations only: NumPy takes long to load, and --help needs none of it
    import ssl

    from ..calls.resampling import Antialias, ResamplingMode
    from ..client import Client

S = TypeVar("S")
T = TypeVar("T")
_MOST_DIGITS = 40  # of a whole number; Python reads no more than 4300, and no size has more than 20
Url = Annotated[str, typer.Option("--url", envvar=URL_VARIABLE, help="The server.", show_default=True)]
Uds = Annotated[
    Path | None,
    typer.Option("--uds", metavar="PATH", help="Unix socket of a server on this machine, instead of the URL's host."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        metavar="PATH",
        help="File with the API key, mode 0600.  [default: variables TENSORPOST_API_KEY, TENSORPOST_API_KEY_FILE]",
    ),
]
CaCert = Annotated[
    Path | None,
    typer.Option(
        "--cacert",
        metavar="PATH",
        help="PEM file with the certificate of the issuer that https trusts.  [default: the usual issuers]",
    ),
]
Cert = Annotated[
    Path | None,
    typer.Option("--cert", metavar="PATH", help="PEM file with a client certificate and its private key, for https."),
]
Silence = Annotated[
    float, typer.Option("--timeout", min=0.001, help="Seconds without progress after which the call fails.")
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        help="Backend to use.  [default: the server's choice]",
        autocompletion=lambda: ["auto", "numba", "numpy", "cuda", "directml"],
    ),
]
DeviceOption = Annotated[
    int | None, typer.Option(min=0, help="Which of that backend's devices, from 0.  [default: the least busy one]")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
InputFile = Annotated[
    str, typer.Argument(metavar="IN", help="npy, safetensors, PNG, JPEG, WebP or AVIF file; - for standard input.")
]
OutputFile = Annotated[
    str,
    typer.Option("--output", "-o", metavar="OUT", help="File, whose suffix selects the format; - for standard output."),
]
RowsOption = Annotated[
    str | None,
    typer.Option(
        "--rows",
        metavar="BEGIN:END",
        help="Only these rows of the output, as in 128:256 or 128:; a row is a run of elements along the last axis.",
    ),
]
Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="NAME=VALUE", help="An attribute, as in axis=1 or repeats=1,2; may be repeated."
    ),
]


def _check_level(level: str | None) -> str | None:
    if level is None:
        return None
    from ..descriptors.feature_levels import FeatureLevel

    return str(usage("--level", FeatureLevel.parse, level))


def _levels() -> list[str]:
    from ..descriptors.feature_levels import FeatureLevel

    return [str(level) for level in FeatureLevel]


Level = Annotated[
    str | None,
    typer.Option(
        help="DirectML feature level that must support it, as in 2_1.",
        callback=_check_level,
        autocompletion=_levels,
    ),
]


def client_of(
    url: str,
    uds: Path | None,
    timeout: float | Timeout = DEFAULT_TIMEOUT_SECONDS,
    *,
    retries: int = DEFAULT_RETRIES,
    api_key: Path | None = None,
    cacert: Path | None = None,
    cert: Path | None = None,
) -> Client:
    """A client as the options of a command say."""
    from ..client import Client
    from ..transport.api_key import find_api_key

    socket = None if uds is None else str(uds)
    key = find_api_key(api_key, url)  # here, because what is wrong with it is not wrong with --url
    tls = True if cacert is None and cert is None else _tls_of(url, cacert, cert)
    return usage(
        "--url",
        lambda address: Client(address, uds=socket, timeout=timeout, retries=retries, api_key=key, tls=tls),
        url,
    )


def _tls_of(url: str, cacert: Path | None, cert: Path | None) -> ssl.SSLContext:
    """How https is verified, with the files of `--cacert` and `--cert`."""
    import ssl

    from ..network.connection import tls_context

    if not url.lower().startswith(("https://", "dns+https://")):
        option = "--cacert" if cert is None else "--cert"
        raise typer.BadParameter(f"{url[:100]} is not an https URL; certificates are for https only", param_hint=option)
    context = tls_context(tls=True)
    for option, path in (("--cacert", cacert), ("--cert", cert)):
        if path is None:
            continue
        try:
            if option == "--cacert":  # instead of the usual issuers, as curl has it
                context = ssl.create_default_context(cafile=path)
            else:
                context.load_cert_chain(path)
        except ssl.SSLError as error:
            needs = "a certificate" if option == "--cacert" else "a certificate with its private key"
            raise typer.BadParameter(
                f"{path} holds no PEM of {needs} ({error.reason or 'no PEM'})", param_hint=option
            ) from None
        except OSError as error:
            raise typer.BadParameter(f"{path} cannot be read: {error.strerror}", param_hint=option) from None
    return context


def rows_of(text: str | None) -> slice | None:
    """What `--rows` asks for."""
    from ..bodies.answer_rows import read_rows

    return None if text is None else slice(*usage("--rows", read_rows, text))


def usage(option: str, read: Callable[[S], T], text: S) -> T:
    """Read an argument; what is wrong with it is wrong with the command line (status 2)."""
    try:
        return read(text)
    except InvalidParameter as error:
        raise typer.BadParameter(error.detail, param_hint=option) from None


def size_of(
    text: str, example: str = "width x height, as in 640x480, or one number for a square, as in 224"
) -> tuple[int, ...]:
    """Elements along each axis: `480,640`, or `640x480`, which is width and height and so the other way round."""
    wide = text.lower().split("x")
    if len(wide) > 2 or not all(wide):
        raise InvalidParameter(f"{text[:60]!r} is not a size; write {example}")
    counts = [count for part in wide for count in counts_of(part, example)]
    if len(wide) == 2 and len(counts) != 2:
        raise InvalidParameter(f"{text[:60]!r} is not a size; write {example}")
    return tuple(counts[:: -1 if len(wide) == 2 else 1])


def filter_of(options: tuple[bool, bool], level: str | None) -> Antialias:
    """What `--antialias` and `--antialias-directml` say together."""
    pillow, directml = options
    if pillow and directml:
        raise InvalidParameter("give --antialias or --antialias-directml, not both; they are two filters")
    if pillow and level is not None:
        raise InvalidParameter(
            "--level is DirectML's, and --antialias is sent as ONNX Resize; leave --level out, or use "
            "--antialias-directml"
        )
    return "directml" if directml else pillow


def mode_named(name: str, *, antialias: Antialias) -> ResamplingMode:
    from ..calls.resampling import mode_of

    if name.lower() in ("cubic", "bicubic"):
        raise InvalidParameter(
            f"resample has no {name}; ONNX Resize has: "
            "tensorpost onnx Resize IN -s mode=cubic -s scales=2,2 -s axes=0,1 -o OUT "
            "(axes 0,1 are the rows and columns of a picture, 2,3 those of N,C,H,W)"
        )
    if name.lower() == "nearest" and antialias:
        raise InvalidParameter("--antialias needs a filter, which nearest does not have; use --mode linear")
    try:
        return mode_of(name, antialias=bool(antialias))
    except InvalidParameter:
        raise InvalidParameter(f"{name[:40]!r} is not a mode; there are linear and nearest") from None


def counts_of(text: str, example: str = "one per dimension, as in 1,1,3,3") -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise InvalidParameter(f"{text[:60]!r} is not a list of whole numbers; write {example}")
    if any(len(part) > _MOST_DIGITS for part in parts):
        raise InvalidParameter(
            f"{text[:60]!r}... has a number of more than {_MOST_DIGITS} digits; no array is so large"
        )
    counts = tuple(int(part) for part in parts)
    if 0 in counts:
        raise InvalidParameter(f"{text[:60]!r} has a 0; a result has at least 1 element along every dimension")
    return counts


def axes_of(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidParameter(f"{text[:60]!r} is not a list of axes; write numbers, as in -2,-1") from None


def factors_of(text: str) -> tuple[float, ...]:
    from ..calls.resampling import simplest_ratio

    try:
        factors = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidParameter(f"{text[:60]!r} is not a number or a list of numbers, as in 2 or 0.5,0.5") from None
    for factor in factors:
        simplest_ratio(factor, "a factor")
    return factors
