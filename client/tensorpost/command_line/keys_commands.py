"""`tensorpost keys`: the API keys of a server."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, TextIO, cast

import typer

from ..values.problems import InvalidParameter
from .server_commands import server_commands
from .terminal import print_json, print_table

keys = typer.Typer(
    name="keys", help="Make, list and revoke the API keys of a server.", no_args_is_help=True, rich_markup_mode=None
)

KeysFile = Annotated[
    Path,
    typer.Option(
        "--keys-file", metavar="PATH", envvar="TENSORPOST_KEYS_FILE", help="The server's keys file.", show_default=False
    ),
]
HolderArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The key holder's name: letters, digits, dots, _ and -.")
]


@keys.command(epilog="Example: tensorpost keys add anna --keys-file keys.jsonl --days 90 --output anna.key")
def add(
    name: HolderArgument,
    *,
    keys_file: KeysFile,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="run allows computing, admin allows /metrics; may be repeated.  [default: run]"),
    ] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Days until it expires.  [default: never]")] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Largest rate of requests.  [default: any]")
    ] = None,
    bytes_per_minute: Annotated[
        int | None,
        typer.Option(min=1, help="Largest rate of bytes in requests and responses together.  [default: any]"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="New file for it that only you can read, as --api-key-file requires."),
    ] = None,
) -> None:
    """Make a key and print it once; the file holds only its SHA-256. Running servers accept it within a second."""
    with nullcontext() if output is None else _private_file(output) as file:
        key: str = server_commands().add_key(
            keys_file,
            name,
            scopes=scope or ["run"],
            days=days,
            requests_per_minute=requests_per_minute,
            bytes_per_minute=bytes_per_minute,
        )
        if file is None:
            typer.echo(f"the key of {name}; it is not stored anywhere else and cannot be shown again:", err=True)
            typer.echo(key)
        else:
            file.write(f"{key}\n")
    if output is not None:
        typer.echo(
            f"the key of {name} is in {output}, which only you can read; it is not stored anywhere else",
            err=True,
        )


@contextmanager
def _private_file(path: Path) -> Generator[TextIO]:
    """A new file of mode 0600, which is removed again if an error follows.

    Raises:
        InvalidParameter: it is there already, or cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidParameter(f"{path} exists; no key was made: name a new file for it after --output") from None
    except OSError as error:
        raise InvalidParameter(f"{path} cannot be written to ({error.strerror}); no key was made") from None
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@keys.command(name="list", epilog="Example: tensorpost keys list --keys-file keys.jsonl")
def list_(*, keys_file: KeysFile, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the keys by name, with scopes, expiry and quotas."""
    rows: Sequence[Mapping[str, object]] = server_commands().list_keys(keys_file)
    if as_json:
        print_json(rows)
        return
    print_table(
        ("name", "scopes", "created", "expires", "requests a minute", "bytes a minute"), [_cells(row) for row in rows]
    )


@keys.command(epilog="Example: tensorpost keys revoke anna --keys-file keys.jsonl")
def revoke(name: HolderArgument, *, keys_file: KeysFile) -> None:
    """Remove a key from the file. Running servers refuse it within a second, but finish the calls in progress."""
    server_commands().revoke_key(keys_file, name)
    typer.echo(f"{name} is revoked", err=True)


def _cells(row: Mapping[str, object]) -> tuple[object, ...]:
    expires = row["expires"] or "never"
    return (
        row["name"],
        " ".join(cast("Sequence[str]", row["scopes"])),
        row["created"],
        f"{expires} (has expired)" if row["expired"] else expires,
        row["requests_per_minute"] or "any",
        row["bytes_per_minute"] or "any",
    )
