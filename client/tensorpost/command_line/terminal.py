"""What the command line shows: results as JSON or a table, errors as a block of text, long work as a progress bar.

Results go to standard output, everything said about them to standard error.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

import typer

from ..values.problems import CallChanged, TensorpostError, Unauthenticated, Violation

if TYPE_CHECKING:  # for annotations only: it takes long to load
    from ..transport.progress import Progress

_LONGEST_CELL = 72  # columns of a sentence in a file or a pipe, where no terminal folds it
_NARROWEST = 8  # columns; a terminal narrower than such columns breaks the lines itself
_GAP = "  "


@contextmanager
def progress_bar(total: int, *, quiet: bool, kept: bool = False) -> Generator[Any]:
    """A function to call with `Progress`, and a bar on standard error if that is a terminal and the work is long.

    Interrupted by Ctrl+C, it says how far the call came. None instead of the function where the work is short.

    Args:
        total: bytes both ways.
        quiet: whether no bar is shown.
        kept: whether what has arrived is kept if the call ends early.
    """
    from ..transport.http1 import PIECE_BYTES

    last: Progress | None = None
    is_long = total >= 16 * PIECE_BYTES  # a bar for less would be gone before it is seen
    with _bar(total) if is_long and not quiet and sys.stderr.isatty() else nullcontext() as draw:

        def see(progress: Progress) -> None:
            nonlocal last
            last = progress
            if draw is not None:
                draw(progress)

        try:
            yield see if is_long else None
        except KeyboardInterrupt:
            typer.echo(_interrupted(last) + ("" if kept else "; no incomplete file is kept"), err=True)
            raise


def _interrupted(last: Progress | None) -> str:
    """How far a call had come."""
    if last is None:
        return "interrupted before an answer came"
    whole = "" if last.to_receive is None else f" of {size_text(last.to_receive)}"
    sent, received = f"{size_text(last.sent)} of {size_text(last.to_send)}", f"{size_text(last.received)}{whole}"
    return f"interrupted: {sent} sent, {received} received"


@contextmanager
def _bar(total: int) -> Generator[Callable[[Progress], None]]:
    import rich.progress  # it takes long to load, as long as the call of a small tensor
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn(binary_units=True),
        rich.progress.TextColumn("{task.fields[rate]}"),  # Rich's own column of speeds counts in MB
        rich.progress.TimeRemainingColumn(compact=True),
    )
    begin = time.perf_counter()
    with rich.progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("sending", total=total, rate="")

        def show(progress: Progress) -> None:
            waiting = "computing" if progress.sent == progress.to_send else "sending"
            doing = "receiving" if progress.received else waiting
            done = progress.sent + progress.received
            rate = done / (1 << 20) / max(time.perf_counter() - begin, 1e-3)
            bar.update(task, description=doing, completed=done, rate=f"{rate:.0f} MiB/s")

        yield show
    seconds = time.perf_counter() - begin
    console.print(f"{size_text(total)} both ways in {seconds:.1f} s", highlight=False)


@contextmanager
def keeping(path: str) -> Generator[None]:
    """Write a Zarr array in this block; if that ends early, say what is kept."""
    from ..calls.zarr_store import part_of

    try:
        yield
    except CallChanged:  # its message says what to do
        raise
    except BaseException:
        if (part := part_of(path)).exists():
            typer.echo(f"{part} keeps what has arrived; the same command continues from there", err=True)
        raise


def place_of(violation: Violation) -> str:
    """A violation's JSONPath or option, whether it was made here or came from a server as text."""
    first = violation.path[0] if violation.path else None
    return first if isinstance(first, str) and first.startswith(("$", "-")) else violation.to_json()["path"]


def show_error(error: TensorpostError) -> None:
    """What was wrong, what was expected and what to change, violation by violation."""
    lines: list[str] = []
    for violation in error.violations:
        lines.append(f"{place_of(violation)}: {violation.message}")
        value = "" if violation.value is None else f"found {json.dumps(violation.to_json()['value'])}"
        expected = f"expected {violation.expected}" if violation.expected else ""
        source = f"({violation.source})" if violation.source else ""
        facts = ", ".join(filter(None, (value, expected)))
        if facts or source:
            lines.append("  " + " ".join(filter(None, (facts, source))))
    lines += getattr(error, "__notes__", ())
    if error.request_id:
        lines.append(f"request id: {error.request_id}")
    detail = error.detail
    if "certificate" in error.extra:
        from ..network.connection import TRUST_ADVICE

        detail = detail.replace(TRUST_ADVICE, "if it should be, name the certificate of its issuer: --cacert FILE")
    if isinstance(error, Unauthenticated):
        from ..transport.api_key import KEY_ADVICE

        detail = detail.replace(KEY_ADVICE, "name a file that holds one: --api-key-file FILE, or the variable "
                                "TENSORPOST_API_KEY_FILE")  # fmt: skip
    # With violations the detail repeats the first one.
    show_block(error.title if error.violations else detail, lines)


def show_block(headline: str, lines: Sequence[str]) -> None:
    """An error on standard error: a headline, and what belongs to it indented."""
    text = "\n  ".join([f"error: {headline}", *lines])
    # What a server or a file said must not steer the terminal.
    typer.echo("".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text), err=True)


def print_json(value: Any) -> None:
    """The value on standard output, indented."""
    typer.echo(json.dumps(value, indent=2))


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on standard output, whose columns are as wide as their longest cells.

    In a terminal the widest columns are narrowed to fit, and their cells are folded. In a file or a pipe, sentences are
    folded and no word is broken.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    is_terminal = sys.stdout.isatty()
    limits = [_LONGEST_CELL] * len(heads)
    if is_terminal:
        widths = [max(_columns_of(row[place]) for row in (heads, *cells)) for place in range(len(heads))]
        limits = _shared(widths, shutil.get_terminal_size().columns - len(_GAP) * (len(heads) - 1))
    table = [[_folded(cell, limit, whole=not is_terminal) for cell, limit in zip(row, limits, strict=True)]
             for row in (heads, *cells)]  # fmt: skip
    widths = [max(_columns_of(line) for row in table for line in row[place]) for place in range(len(heads))]
    for number, row in enumerate(table):
        for line in zip_longest(*row, fillvalue=""):
            text = _GAP.join([part + " " * (w - _columns_of(part)) for part, w in zip(line, widths, strict=True)])
            typer.secho(text.rstrip(), bold=True if number == 0 else None)


def _columns_of(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum([1 + (east_asian_width(c) in "WF") for c in text])


def _shared(widths: Sequence[int], available: int) -> list[int]:
    """Widths whose sum is `available` or less, by narrowing the widest columns."""
    narrowed = [*widths]
    while sum(narrowed) > available and max(narrowed) > _NARROWEST:
        narrowed[narrowed.index(max(narrowed))] -= 1
    return narrowed


def _folded(sentence: str, limit: int, *, whole: bool) -> list[str]:
    """The lines of a cell; a word that is longer than a line is broken unless words stay `whole`."""
    if _columns_of(sentence) <= limit:
        return [sentence]
    width = limit * len(sentence) // _columns_of(sentence)
    return textwrap.wrap(sentence, max(width, 1), break_long_words=not whole, break_on_hyphens=False) or [""]


def size_text(size_in_bytes: int) -> str:
    """`2 GiB`, `1.5 MiB` or `300 bytes`; a size that is not a whole number of hundredths is followed by its bytes."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_in_bytes >= factor:
            short = f"{size_in_bytes / factor:.2f}".rstrip("0").rstrip(".")
            exact = size_in_bytes * 100 % factor == 0
            return f"{short} {unit}" if exact else f"{short} {unit} ({size_in_bytes:,} bytes)"
    return f"{size_in_bytes:,} bytes"


def gib(size_in_bytes: float) -> str:
    """`2.0 GiB`."""
    return f"{size_in_bytes / (1 << 30):.1f} GiB"
