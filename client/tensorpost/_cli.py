"""The commands. Results go to standard output, everything said about them to standard error.

Exit status: 0 done; 1 refused or failed, with one block on standard error that says what was wrong, what was expected
and what to change; 2 the command line itself was wrong, an option's value included.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer
from numpy.typing import NDArray
from typer.core import TyperGroup

from ._api_key import find_api_key
from ._arrays import tile_call
from ._bench_command import measured
from ._files import (
    check_destination,
    check_picture,
    destination,
    format_of,
    read_array,
    standard_input,
    write_blocks,
)
from ._keys_commands import keys
from ._options import DEFAULT_RETRIES, DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL, Timeout
from ._run_command import attributes_of, compute_outputs, described, described_node, operator_document
from ._server_commands import server_commands
from ._terminal import gib, place_of, print_json, print_table, progress_bar, show_block, show_error, size_text
from .client import Client
from .descriptors import NEWEST, FeatureLevel, OperatorDesc, parse_operator
from .frame import encode_npy_head
from .images import encode_image
from .onnx import OnnxNode, lower
from .operation import Operation
from .problems import InvalidDescriptor, InvalidParameter, TensorpostError, UnsupportedAtLevel, Violation
from .resampling import DML_TYPES, Mode, mode_of, resampling, simplest_ratio
from .strict_json import read_json

__all__ = ["app"]

S = TypeVar("S")
T = TypeVar("T")

_MOST_DIGITS = 40  # of a whole number; Python reads no more than 4300, and no size has more than 20


class _Commands(TyperGroup):
    """All commands, with one place where an error becomes a block of text and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TensorpostError as error:
            show_error(error)
        except BrokenPipeError:
            raise  # the reader of our output has had enough: no error, and the framework's to end quietly
        except OSError as error:
            show_block(f"{error.filename}: {error.strerror}" if error.filename is not None else str(error), [])
        except ModuleNotFoundError as missing:
            show_block(str(missing), [])  # an extra that is not installed; the message names it
        except MemoryError:
            show_block("there is not enough memory for this; an npy file needs less than a pipe or a picture", [])
        raise typer.Exit(1)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their whole first sentence, which click would cut."""
        del ctx
        rows = [(name, _first_sentence(command.help)) for name, command in self.commands.items() if not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split()).partition(". ")[0].rstrip(".") + "."


app = typer.Typer(
    cls=_Commands,
    name="tensorpost",
    help="POST a DirectML operator and a tensor, get the result back as raw bytes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a mistake of ours is best reported with the plain traceback
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(keys)

Url = Annotated[str, typer.Option("--url", envvar="TENSORPOST_URL", help="The server.", show_default=True)]
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
Silence = Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds of silence after which to give up.")]
Backend = Annotated[
    str | None,
    typer.Option(
        help="Backend to use.  [default: the server's choice]",
        autocompletion=lambda: ["auto", "numba", "numpy", "cuda", "directml"],
    ),
]
Device = Annotated[
    int | None, typer.Option(min=0, help="Which of that backend's devices, from 0.  [default: the least busy one]")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
InputFile = Annotated[str, typer.Argument(metavar="IN", help="npy, PNG, JPEG or WebP file; - for standard input.")]
OutputFile = Annotated[
    str, typer.Option("--output", "-o", metavar="OUT", help="File; its ending picks the format. - for standard output.")
]


Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="NAME=VALUE", help="An attribute, as in axis=1 or repeats=1,2; once for each of them."
    ),
]


def _check_level(level: str | None) -> str | None:
    return None if level is None else str(_usage("--level", FeatureLevel.parse, level))


Level = Annotated[
    str | None,
    typer.Option(
        help="DirectML feature level that must support it, as in 2_1.",
        callback=_check_level,
        autocompletion=lambda: [str(level) for level in FeatureLevel],
    ),
]


@dataclass(frozen=True, slots=True)
class _Computation:
    """What a command computes: an operation, its input, and the shape of the result."""

    operation: Operation
    array: NDArray[Any]
    shape: tuple[int, ...]
    backend: str | None
    device: int | None
    level: str | None


def _output_format(output: str) -> str | None:
    wanted = _usage("--output", format_of, output)
    check_destination(output)
    if output == "-" and sys.stdout.isatty():
        raise typer.BadParameter("a terminal cannot show the result; write it to a file with -o", param_hint="--output")
    return wanted


def _compute(client: Client, computation: _Computation, output: str, out_format: str, *, quiet: bool) -> None:
    """Run it and write its result."""
    (slot,) = computation.operation.outputs
    if out_format != "npy":
        check_picture(slot.layout.data_type.dtype, computation.shape, out_format)
    total = computation.array.nbytes + slot.layout.size_in_bytes
    options: dict[str, Any] = {
        "backend": computation.backend,
        "device": computation.device,
        "feature_level": computation.level,
    }
    with progress_bar(total, quiet=quiet) as progress:
        if out_format == "npy":
            # Never whole in our memory: mapped in, streamed out.
            head = encode_npy_head(slot.layout.data_type, computation.shape)
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


# ---- commands --------------------------------------------------------------------------------------------------------


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"tensorpost {version('tensorpost')}")
        except PackageNotFoundError:
            typer.echo("tensorpost, not installed as a package")
        raise typer.Exit


@app.callback()
def tensorpost(
    *,
    show_version: Annotated[  # the callback does its work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """POST a DirectML operator and a tensor, get the result back as raw bytes."""


@app.command(epilog="Example: tensorpost serve --port 8000")
def serve(
    *,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.  [default: setting TENSORPOST_HOST, or 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on.  [default: setting TENSORPOST_PORT, or 8000]"),
    ] = None,
    uds: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Unix socket to listen on instead of a port.  [default: setting TENSORPOST_UDS, or none]",
        ),
    ] = None,
    log_level: Annotated[
        str,
        typer.Option(
            help="critical, error, warning, info or debug.",
            autocompletion=lambda: ["critical", "error", "warning", "info", "debug"],
        ),
    ] = "info",
    workers: Annotated[int, typer.Option(help="Must be 1: a process owns its devices and its memory budget.")] = 1,
    ray: Annotated[
        int | None,
        typer.Option(
            "--ray", min=1, metavar="REPLICAS", help="On Ray Serve, with so many processes; see docs/deploy.md."
        ),
    ] = None,
) -> None:
    """Run the server until it is told to stop. Other settings are environment variables: see `tensorpost config`."""
    commands = server_commands()
    if log_level not in commands.LOG_LEVELS:
        known = ", ".join(commands.LOG_LEVELS)
        raise typer.BadParameter(f"{log_level[:40]!r} does not exist; there are {known}", param_hint="--log-level")
    if workers != 1:
        raise typer.BadParameter(
            "one process owns its devices, its memory budget and its metrics, and uses every core by itself; start one "
            "server for each port or container instead, behind a load balancer",
            param_hint="--workers",
        )
    if ray is not None and uds is not None:
        raise typer.BadParameter("Ray Serve listens on a port; leave out --uds or --ray", param_hint="--ray")
    if ray is not None:
        commands.serve_on_ray(ray, host=host, port=port, log_level=log_level)
    else:
        commands.serve(host=host, port=port, uds=uds, log_level=log_level)


@app.command(epilog="Example: tensorpost tile cat.png -o cats.png --repeats 3,3")
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
    backend: Backend = None,
    device: Device = None,
    level: Level = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    quiet: Quiet = False,
) -> None:
    """Lay copies of an array or a picture side by side (DML_OPERATOR_TILE). Pipes carry the format that came in."""
    wanted = _output_format(output)
    copies = _usage("--repeats", _counts, repeats.replace("x", ","))
    client = _client(url, uds, timeout, api_key=api_key_file)
    read = read_array(source)
    if read.is_picture and read.array.ndim == 3 and len(copies) == 2:
        copies = (*copies, 1)
    call = tile_call(read.array, copies, directml=level is not None)
    computation = _Computation(call.operation, call.array, call.shape, backend, device, level)
    with client:
        _compute(client, computation, output, wanted or read.format, quiet=quiet)


@app.command(epilog="Example: tensorpost resample photo.png -o big.png --scale 2")
def resample(
    source: InputFile,
    *,
    scale: Annotated[
        str | None, typer.Option(help="Factor for every axis of --axes, as in 2 or 0.5; or one for each, as in 2,1.5.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Instead of --scale: width x height, as in 640x480; or sizes along --axes, as in 480,640."),
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option(help="Axes to resize, as in -2,-1.  [default: rows and columns of a picture, all axes of an npy]"),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="linear or nearest.", autocompletion=lambda: ["linear", "nearest"])
    ] = "linear",
    antialias: Annotated[bool, typer.Option("--antialias", help="Filter while shrinking (RESAMPLE3).")] = False,
    output: OutputFile = "-",
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    backend: Backend = None,
    device: Device = None,
    level: Level = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    quiet: Quiet = False,
) -> None:
    """Resize an array or a picture (DML_OPERATOR_RESAMPLE2, or RESAMPLE3 with --antialias), pixel centres aligned."""
    wanted = _output_format(output)
    if (scale is None) == (size is None):
        raise typer.BadParameter("give exactly one of --scale and --size", param_hint="--scale")
    factors = None if scale is None else _usage("--scale", _numbers, scale)
    counts = None if size is None else _usage("--size", _size, size)
    chosen = None if axes is None else _usage("--axes", _axes, axes)
    kind: Mode = _usage("--mode", functools.partial(_mode, antialias=antialias), mode)
    client = _client(url, uds, timeout, api_key=api_key_file)
    read = read_array(source)
    if chosen is None:
        chosen = (0, 1) if read.is_picture else tuple(range(read.array.ndim))
    if size is not None and "x" in size.lower() and len(chosen) != 2:
        raise InvalidParameter("width x height is for two axes; name them, rows first, as in --axes -2,-1")
    if read.array.dtype.name not in DML_TYPES:
        raise InvalidParameter(
            f"resample takes {', '.join(DML_TYPES)}, not {read.array.dtype.name}; convert the file, or use a command "
            "that takes it: tensorpost onnx Resize IN -s mode=linear -s scales=2,2"
        )
    plan = resampling(
        read.array,
        scales=factors if factors is None or len(factors) != 1 else factors[0],
        sizes=counts if counts is None or len(counts) != 1 else counts[0],
        axes=chosen,
        mode=kind,
        antialias=antialias,
    )
    computation = _Computation(
        plan.desc, read.array.reshape(plan.desc.input_tensor.sizes), plan.output_shape, backend, device, level
    )
    with client:
        _compute(client, computation, output, wanted or read.format, quiet=quiet)


@app.command(epilog="Example: tensorpost run join.json a.npy b.npy -o joined.npy")
def run(
    file: Annotated[
        str,
        typer.Argument(
            metavar="OPERATOR",
            help="Name of a DirectML operator, as in join; or FILE.json, a document; input tensors may be left out.",
        ),
    ],
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="[IN]...", help="npy files or pictures in binding order.")
    ] = None,
    *,
    settings: Attributes = None,
    output: Annotated[
        list[str] | None,
        typer.Option("--output", "-o", metavar="OUT", help="npy file, one for each output; - for standard output."),
    ] = None,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    backend: Backend = None,
    device: Device = None,
    level: Level = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    quiet: Quiet = False,
) -> None:
    """Run any operator on npy files or pictures. Outputs of any size are streamed to npy files."""
    outputs = output or ["-"]
    formats = [_output_format(path) for path in outputs]
    client = _client(url, uds, timeout, api_key=api_key_file)
    given = _usage("--set", attributes_of, settings or [])
    if file == "-" or file.endswith(".json"):
        if given:
            raise typer.BadParameter("the document says the attributes; leave --set out", param_hint="--set")
        document = _read_document(file)
        if not isinstance(document, dict):
            raise InvalidParameter("an operator document must be a JSON object")
    else:
        document = operator_document(file, given)
    arrays = [read_array(path).array for path in inputs or ()]
    operation, by_name = described(cast("dict[str, Any]", document), arrays)
    with client:
        options: dict[str, Any] = {"backend": backend, "device": device, "feature_level": level}
        compute_outputs(client, operation, by_name, outputs, formats, options, quiet=quiet)


@app.command(epilog="Example: tensorpost onnx Resize x.npy -s mode=cubic -s scales=1,1,2,2 -o y.npy")
def onnx(
    op_type: Annotated[str, typer.Argument(metavar="OP_TYPE", help="Name of an ONNX operator, as in Resize.")],
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="[IN]...", help="npy files or pictures: its tensors, in order.")
    ] = None,
    *,
    settings: Attributes = None,
    opset: Annotated[int | None, typer.Option(min=1, help="Opset.  [default: the newest]")] = None,
    output: Annotated[
        list[str] | None,
        typer.Option("--output", "-o", metavar="OUT", help="File, one for each output; - for standard output."),
    ] = None,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    backend: Backend = None,
    device: Device = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    quiet: Quiet = False,
) -> None:
    """Run any ONNX operator on npy files or pictures. Attributes and small inputs, such as scales, go into --set."""
    outputs = output or ["-"]
    formats = [_output_format(path) for path in outputs]
    client = _client(url, uds, timeout, api_key=api_key_file)
    given = _usage("--set", attributes_of, settings or [])
    arrays = [read_array(path).array for path in inputs or ()]
    operation, by_name = described_node(op_type, opset, given, arrays)
    with client:
        options: dict[str, Any] = {"backend": backend, "device": device}
        compute_outputs(client, operation, by_name, outputs, formats, options, quiet=quiet)


@app.command(epilog="Example: tensorpost validate tile.json --level 2_1")
def validate(
    file: Annotated[str, typer.Argument(metavar="FILE.json", help="An operator document; - for standard input.")],
    *,
    level: Annotated[str, typer.Option(help="DirectML feature level to check against, 1_0 to 6_4.")] = str(NEWEST),
    url: Annotated[str | None, typer.Option("--url", help="Ask this server instead of checking here, offline.")] = None,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Check a document against DirectML's rules, or an ONNX node's, and show every violation. Exit status 1 if any."""
    wanted = _usage("--level", FeatureLevel.parse, level)
    client = None if url is None and uds is None else _client(url or DEFAULT_URL, uds, api_key=api_key_file)
    document = _read_document(file)
    try:
        if client is None:
            desc = _validate_offline(document, wanted)
        else:
            with client:
                desc = client.validate(document, feature_level=wanted).operator
        lowering = lower(desc, wanted) if isinstance(desc, OnnxNode) else None
    except InvalidDescriptor as error:
        if not as_json:
            raise
        _print_verdict(wanted, error.extra.get("lowest_feature_level"), error.violations)
        raise typer.Exit(1) from None
    expressed = lowering.descriptor if lowering else desc
    lowest = str(expressed.lowest_feature_level()) if isinstance(expressed, OperatorDesc) else None
    if as_json:
        _print_verdict(wanted, lowest, ())
    elif isinstance(desc, OnnxNode) and lowering:
        typer.echo(f"valid {desc.schema.name}; in DirectML {wanted}: {lowering.verdict.value} ({lowering.reason})")
    elif isinstance(desc, OperatorDesc):
        typer.echo(f"valid at feature level {wanted} (DML_OPERATOR_{desc.operator_type}; lowest level {lowest})")


@app.command(epilog="Example: tensorpost devices --url http://127.0.0.1:8000")
def devices(
    *,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """List a server's devices, what is in use on them, and why some cannot be used."""
    with _client(url, uds, timeout, api_key=api_key_file) as client:
        answer = client.devices()
    if as_json:
        print_json(answer)
        return
    rows = [
        (d.get("name"), d.get("device") or "-", d.get("reason") or "ready", _in_use(d))
        for d in answer.get("devices", [])
    ]
    print_table(("backend", "device", "state", "in use"), rows)
    typer.echo(f"default: {answer.get('default')}")


@app.command(epilog="Example: tensorpost doctor")
def doctor(*, as_json: AsJson = False) -> None:
    """Look for every device on this machine: found or not, version, device and its memory, or why not."""
    rows: Sequence[Mapping[str, object]] = server_commands().doctor()
    if as_json:
        print_json(rows)
        return
    table = [
        (row["name"], "yes" if row["available"] else "no", row["version"] or "-", _device_or_reason(row))
        for row in rows
    ]
    print_table(("backend", "found", "version", "device, or why not"), table)


@app.command(name="probe-directml", epilog="Example: tensorpost probe-directml --output directml-answers.json")
def probe_directml(
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="JSON file to write. - for standard output.")
    ] = "-",
    device: Annotated[int, typer.Option(min=0, help="DXGI's index of the adapter.")] = 0,
) -> None:
    """Ask DirectML on this Windows machine the twelve questions its documents leave open; the answers are JSON."""
    check_destination(output)
    document: Mapping[str, Any] = server_commands().probe_directml(device)
    with destination(output) as file:
        file.write(json.dumps(document, indent=2).encode() + b"\n")
    answers: Sequence[Mapping[str, object]] = document["answers"]
    states = [answer["state"] for answer in answers]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("answered", "failed"))
    others = [str(answer["number"]) for answer in answers if answer["agrees"] is False]
    typer.echo(f"DirectML {document['directml_library'] or 'of the system'}: {counts}", err=True)
    if others:
        typer.echo(f"not as tensorpost has it: {', '.join(others)}", err=True)


@app.command(epilog="Example: NUMBA_CACHE_DIR=/var/cache/tensorpost tensorpost warmup")
def warmup(
    *,
    cuda: Annotated[
        bool, typer.Option("--cuda", help="The cuda backend's kernels instead, for the common GPUs; needs no GPU.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile the numba backend's loops ahead, once per user, so that servers started here use them."""
    commands = server_commands()
    what, time = (
        ("cuda backend's kernels", "some minutes") if cuda else ("numba backend's loops", "half a minute to a minute")
    )
    typer.echo(f"compiling the {what}, unless they are there: {time}", err=True)
    row: Mapping[str, object] = commands.warmup_cuda() if cuda else commands.warmup()
    if as_json:
        print_json(row)
    elif cuda:
        typer.echo(f"{row['compiled']} kernels compiled in {row['seconds']} s, in {row['folder']}")
    else:
        made = f"compiled in {row['seconds']} s" if row["compiled"] else "compiled already"
        typer.echo(f"the numba backend is ready: {made}, in {row['file']}")


@app.command(epilog="Example: tensorpost healthcheck --url http://127.0.0.1:8000")
def healthcheck(
    *,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds to wait for an answer.")] = 2.0,
) -> None:
    """Exit with status 0 if the server takes requests and 1 if not, saying nothing. For containers."""
    patience = Timeout(connect=timeout, read=timeout, write=timeout, pool=timeout)
    with _client(url, uds, patience, retries=0) as client:
        if not client.ready():
            raise typer.Exit(1)


@app.command(epilog="Example: tensorpost bench http://gpu-box:8000")
def bench(
    server: Annotated[str | None, typer.Argument(metavar="[URL]", help="The server.  [default: --url]")] = None,
    *,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    seconds: Annotated[float, typer.Option(min=0, max=60, help="Seconds for each of four sizes.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Measure from here what calls of a server take: the whole of them, and the server's part."""
    with _client(server or url, uds, timeout, api_key=api_key_file) as client:
        rows = list(measured(client, seconds))
    if as_json:
        print_json(rows)
        return
    heads = ("sent", "received", "calls", "median", "slowest", "server's part", "both ways")
    cells = [
        (
            size_text(row["sent_bytes"]), size_text(row["received_bytes"]), row["calls"], f"{row['median_ms']:,.2f} ms",
            f"{row['slowest_ms']:,.2f} ms", f"{row['server_ms']:,.2f} ms", f"{row['bytes_per_second'] / 1e6:,.1f} MB/s",
        )
        for row in rows
    ]  # fmt: skip
    print_table(heads, cells)
    typer.echo(
        "Tile, twice along one axis, float32; one call at a time. The rest of a call is the way and this client."
    )


@app.command(epilog="Example: TENSORPOST_PORT=9000 tensorpost config")
def config(*, as_json: AsJson = False) -> None:
    """Show the settings that a server started here would have, and where each comes from."""
    rows: Sequence[Mapping[str, object]] = server_commands().config()
    if as_json:
        print_json(rows)
        return
    print_table(
        ("setting", "value", "origin", "variable"),
        [(row["name"], _value_text(row), row["origin"], row["variable"]) for row in rows],
    )


def _value_text(row: Mapping[str, object]) -> object:
    """One cell of `config`: sizes as people say them."""
    value = row["value"]
    return size_text(value) if "_bytes" in str(row["name"]) and isinstance(value, int) else value


def _device_or_reason(row: Mapping[str, Any]) -> str:
    """One cell of `doctor`: the device with its memory and where its compiled code is, or why there is none."""
    if not row["available"]:
        return str(row["reason"])
    memory, folder = row["gauges"].get("device_memory_bytes"), row["folder"]
    device = row["device"] if memory is None else f"{row['device']}, {gib(memory)}"
    return device if folder is None else f"{device}; compiled code in {folder}"


def _in_use(device: Mapping[str, Any]) -> str:
    """One cell of `devices`: work that waits, and memory. An older server may say less."""
    gauges: Mapping[str, Any] = device.get("gauges") or {}
    cells = [f"{gib(device['queued_bytes'])} queued"] if device.get("queued_bytes") else []
    if "device_memory_used_bytes" in gauges:
        cells.append(f"{gib(gauges['device_memory_used_bytes'])} of {gib(gauges['device_memory_limit_bytes'])}")
    return ", ".join(cells) or "-"


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _client(
    url: str,
    uds: Path | None,
    timeout: float | Timeout = DEFAULT_TIMEOUT_SECONDS,
    *,
    retries: int = DEFAULT_RETRIES,
    api_key: Path | None = None,
) -> Client:
    socket = None if uds is None else str(uds)
    key = find_api_key(api_key, url)  # here, because what is wrong with it is not wrong with --url
    return _usage(
        "--url", lambda address: Client(address, uds=socket, timeout=timeout, retries=retries, api_key=key), url
    )


def _usage(option: str, read: Callable[[S], T], text: S) -> T:
    """Read an argument; what is wrong with it is wrong with the command line (status 2)."""
    try:
        return read(text)
    except InvalidParameter as error:
        raise typer.BadParameter(error.detail, param_hint=option) from None


def _read_document(file: str) -> Any:
    return read_json(standard_input().read() if file == "-" else Path(file).read_bytes())


def _size(text: str) -> tuple[int, ...]:
    """Elements along each axis: `480,640`, or `640x480`, which is width and height and so the other way round."""
    if "x" not in text.lower():
        return _counts(text)
    counts = _counts(text.lower().replace("x", ","))
    if len(counts) != 2:
        raise InvalidParameter(f"{text[:60]!r} is no size; write width x height, as in 640x480")
    return counts[::-1]


def _mode(name: str, *, antialias: bool) -> Mode:
    if name.lower() == "cubic":
        raise InvalidParameter(
            "resample has no cubic; ONNX Resize has: tensorpost onnx Resize IN -s mode=cubic -s scales=2,2"
        )
    if name.lower() == "nearest" and antialias:
        raise InvalidParameter("--antialias needs a filter, which nearest does not have; use --mode linear")
    try:
        return mode_of(name, antialias=antialias)
    except InvalidParameter:
        raise InvalidParameter(f"{name[:40]!r} is no mode; there are linear and nearest") from None


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise InvalidParameter(f"{text[:60]!r} is no list of whole numbers; write one per dimension, as in 1,1,3,3")
    if any(len(part) > _MOST_DIGITS for part in parts):
        raise InvalidParameter(
            f"{text[:60]!r}... has a number of more than {_MOST_DIGITS} digits; no array is so large"
        )
    counts = tuple(int(part) for part in parts)
    if 0 in counts:
        raise InvalidParameter(f"{text[:60]!r} has a 0; a result has at least 1 element along every dimension")
    return counts


def _axes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidParameter(f"{text[:60]!r} are no axes; write their numbers, as in -2,-1") from None


def _numbers(text: str) -> tuple[float, ...]:
    try:
        factors = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidParameter(f"{text[:60]!r} are no numbers; write them, as in 2 or 0.5,0.5") from None
    for factor in factors:
        simplest_ratio(factor, "a factor")
    return factors


def _is_node(document: object) -> bool:
    return isinstance(document, dict) and "op_type" in cast("dict[str, object]", document)


def _validate_offline(document: Any, level: FeatureLevel) -> OperatorDesc | OnnxNode:
    """What a server would say, from the same rules.

    Raises:
        InvalidDescriptor: with paths from the document's root, and the lowest level if there is one.
    """
    if _is_node(document):
        return OnnxNode.from_json(document)
    desc = parse_operator(document, complete=True)
    try:
        desc.validate_for(level)
    except UnsupportedAtLevel as error:
        lowest = desc.lowest_feature_level()
        seen_from_root = error.under("desc")
        seen_from_root.extra["lowest_feature_level"] = None if lowest is None else str(lowest)
        raise seen_from_root from None
    return desc


def _print_verdict(level: FeatureLevel, lowest: str | None, violations: Sequence[Violation]) -> None:
    verdict = {
        "valid": not violations,
        "feature_level": str(level),
        "lowest_feature_level": lowest,
        "violations": [{**violation.to_json(), "path": place_of(violation)} for violation in violations],
    }
    print_json(verdict)
