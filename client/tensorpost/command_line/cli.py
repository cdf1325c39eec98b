"""The commands. Results go to standard output, everything said about them to standard error.

Exit status: 0 done; 1 refused or failed, with one block on standard error that says what was wrong, what was expected
and what to change; 2 the command line itself was wrong, an option's value included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..network.options import DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL, Timeout
from ..values.extras import install_command
from ..values.problems import TensorpostError, nearest
from .command_options import (
    AsJson,
    CaCert,
    Cert,
    KeyFile,
    Silence,
    Uds,
    Url,
    client_of,
)
from .keys_commands import keys
from .model_commands import model
from .operator_commands import onnx, resample, run, tile, validate
from .operators_command import operators
from .preprocess_command import preprocess
from .server_commands import server_commands
from .stored_commands import graph
from .tensor_commands import tensor
from .terminal import gib, print_json, print_table, show_block, show_error, size_text


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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click; a name that is not a command gets a hint: a command, or the operator of that name."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            from .. import descriptors as dml  # NumPy takes long to load, and --help needs none of it

            operator = (dml.operator_meant(args[0]) or "").lower()
            command = operator if operator in self.commands else nearest(args[0], self.commands)
            guess = command or (operator and f"run {operator}")
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean 'tensorpost {guess}'?" if guess else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their whole first sentence, which click would cut."""
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
app.add_typer(graph)
app.add_typer(model)
app.add_typer(tensor)


# ---- commands --------------------------------------------------------------------------------------------------------


def _print_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__  # read from the installed package's metadata

        typer.echo(f"tensorpost {__version__}")
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
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Processes that serve the address together; they share memory, devices, quotas and what is stored.  "
            "[default: setting TENSORPOST_WORKERS, or one for each GPU, or for each four cores]",
        ),
    ] = None,
    ray: Annotated[
        int | None,
        typer.Option(
            "--ray", min=1, metavar="REPLICAS", help="Run this number of processes on Ray Serve; see docs/deploy.md."
        ),
    ] = None,
) -> None:
    """Run the server until it is stopped. Other settings are environment variables: see `tensorpost config`."""
    commands = server_commands()
    if log_level not in commands.LOG_LEVELS:
        known = ", ".join(commands.LOG_LEVELS)
        raise typer.BadParameter(f"{log_level[:40]!r} does not exist; there are {known}", param_hint="--log-level")
    if ray is not None and workers is not None:
        raise typer.BadParameter("--ray says how many processes there are; leave out --workers", param_hint="--workers")
    if ray is not None and uds is not None:
        raise typer.BadParameter("Ray Serve listens on a port; leave out --uds or --ray", param_hint="--ray")
    if ray is not None:
        commands.serve_on_ray(ray, host=host, port=port, log_level=log_level)
    else:
        commands.serve(host=host, port=port, uds=uds, log_level=log_level, workers=workers)


app.command(epilog="Example: tensorpost tile cat.png -o cats.png --repeats 3,3")(tile)


app.command(epilog="Example: tensorpost resample photo.png -o big.png --scale 2")(resample)


app.command(epilog="Example: tensorpost preprocess *.jpg -o batch.npy --size 256 --crop 224")(preprocess)


app.command(epilog="Example: tensorpost run join a.npy b.npy -s axis=1 -o joined.npy")(run)


app.command(epilog="Example: tensorpost onnx Resize x.npy -s mode=cubic -s scales=1,1,2,2 -o y.npy")(onnx)


app.command(epilog="Example: tensorpost operators gather")(operators)


app.command(epilog="Example: tensorpost validate tile.json --level 2_1")(validate)


@app.command(epilog="Example: tensorpost devices --url http://127.0.0.1:8000")
def devices(
    *,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """List a server's devices, their load, and why some cannot be used."""
    with client_of(url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert) as client:
        answer = client.devices()
    if as_json:
        print_json(answer)
        return
    rows = [
        (d.get("name"), d.get("device") or "-", d.get("reason") or "ready", _in_use(d))
        for d in answer.get("devices", [])
    ]
    print_table(("backend", "device", "state", "in use"), rows)
    for library in answer.get("libraries", []):
        if library.get("name") == "onnxruntime":  # which models need, and no backend is
            found = library.get("version")
            typer.echo(
                f"onnxruntime: {found}" if found else f"onnxruntime: no; on the server, {install_command('onnx')}"
            )
    typer.echo(f"default: {answer.get('default')}")


@app.command(epilog="Example: tensorpost doctor")
def doctor(*, as_json: AsJson = False) -> None:
    """List every backend on this machine with its version, device and memory, or why it cannot be used."""
    rows: Sequence[Mapping[str, object]] = server_commands().doctor()
    if as_json:
        print_json(rows)
        return
    table = [
        (row["name"], "yes" if row["available"] else "no", row["version"] or "-", _device_or_reason(row))
        for row in rows
    ]
    print_table(("backend", "found", "version", "device, or why not"), table)


@app.command(epilog="Example: NUMBA_CACHE_DIR=/var/cache/tensorpost tensorpost warmup")
def warmup(
    *,
    cuda: Annotated[
        bool,
        typer.Option(
            "--cuda", help="Compile the kernels of the backend cuda instead, for the common GPUs; needs no GPU."
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="LOOPS", help="Only these: expressions, copies, resampling, reductions. May be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile the loops of the backend numba in advance, once per user."""
    commands = server_commands()

    def announce(what: str) -> None:
        typer.echo(what, err=True)

    row: Mapping[str, object] = commands.warmup_cuda(announce) if cuda else commands.warmup(announce, only or ())
    if as_json:
        print_json(row)
    elif cuda:
        typer.echo(f"{row['compiled']} kernels compiled in {row['seconds']} s, in {row['folder']}")
    else:
        done = f"compiled in {row['seconds']} s" if row["compiled"] else "compiled already"
        typer.echo(f"the numba backend is ready: {done}, in {row['folder']}")


@app.command(epilog="Example: tensorpost healthcheck --url http://127.0.0.1:8000")
def healthcheck(
    *,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    cacert: CaCert = None,
    cert: Cert = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds to wait for an answer.")] = 2.0,
) -> None:
    """Exit with status 0 if the server takes requests, otherwise with 1, without output. For containers."""
    patience = Timeout(connect=timeout, read=timeout, write=timeout, pool=timeout)
    with client_of(url, uds, patience, retries=0, cacert=cacert, cert=cert) as client:
        if not client.ready():
            raise typer.Exit(1)


@app.command(epilog="Example: tensorpost bench http://gpu-box:8000")
def bench(
    server: Annotated[str | None, typer.Argument(metavar="[URL]", help="The server.  [default: --url]")] = None,
    *,
    url: Url = DEFAULT_URL,
    uds: Uds = None,
    api_key_file: KeyFile = None,
    cacert: CaCert = None,
    cert: Cert = None,
    timeout: Silence = DEFAULT_TIMEOUT_SECONDS,
    seconds: Annotated[float, typer.Option(min=0, max=60, help="Seconds for each of four sizes.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Measure the total time and the server time of calls, by size."""
    from .bench_command import measured

    with client_of(server or url, uds, timeout, api_key=api_key_file, cacert=cacert, cert=cert) as client:
        rows = list(measured(client, seconds))
    if as_json:
        print_json(rows)
        return
    heads = ("sent", "received", "calls", "median", "slowest", "server", "throughput")
    cells = [
        (
            size_text(row["sent_bytes"]), size_text(row["received_bytes"]), row["calls"], f"{row['median_ms']:,.2f} ms",
            f"{row['slowest_ms']:,.2f} ms", f"{row['server_ms']:,.2f} ms", f"{row['bytes_per_second'] / 1e6:,.1f} MB/s",
        )
        for row in rows
    ]  # fmt: skip
    print_table(heads, cells)
    typer.echo(
        "Tile, twice along one axis, float32; one call at a time. Total minus server time is network and client."
    )


@app.command(epilog="Example: TENSORPOST_PORT=9000 tensorpost config")
def config(*, as_json: AsJson = False) -> None:
    """Show the settings of a server that is started here, and the origin of each."""
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
    missing = (
        f", but not for {', '.join(row['not_compiled'])}: `tensorpost warmup` adds it" if row["not_compiled"] else ""
    )
    return device if folder is None else f"{device}; compiled code in {folder}{missing}"


def _in_use(device: Mapping[str, Any]) -> str:
    """One cell of `devices`: work that waits, and memory. An older server may say less."""
    gauges: Mapping[str, Any] = device.get("gauges") or {}
    cells = [f"{gib(device['queued_bytes'])} queued"] if device.get("queued_bytes") else []
    if "device_memory_used_bytes" in gauges:
        cells.append(f"{gib(gauges['device_memory_used_bytes'])} of {gib(gauges['device_memory_limit_bytes'])}")
    return ", ".join(cells) or "-"
