"""The command `operators`: lists operators, or describes one, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from .command_options import AsJson
from .terminal import print_json, print_table

if TYPE_CHECKING:
    from ..onnx import OnnxSchema
    from ..reference.page_blocks import PageBlock


def operators(
    word: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORD]",
            help="Name of an operator to describe, or a word in the names or summaries of operators to list.",
        ),
    ] = None,
    *,
    onnx: Annotated[bool, typer.Option("--onnx", help="ONNX's operators instead of DirectML's.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the operators, or describe one: formula, fields, levels and types, an example. Needs no server."""
    if onnx:
        _onnx_operators(word or "", as_json=as_json)
    else:
        _directml_operators(word or "", as_json=as_json)


def _directml_operators(word: str, *, as_json: bool) -> None:
    from .. import descriptors as dml  # its catalogue takes long to load, and --help needs none of it
    from ..descriptors.catalogue import facts_of
    from ..descriptors.families import operator_summaries

    wanted = word.lower().removeprefix("dml_operator_")
    if wanted.upper() in dml.operator_names():
        from ..reference.operator_page import operator_page
        from ..reference.operator_reference import operator_reference

        reference = operator_reference(wanted)
        if as_json:
            print_json(reference.to_json())
        else:
            _print_page(operator_page(reference))
            others = [
                name.lower() for name in dml.operator_names() if wanted.upper() in name and name != reference.name
            ]
            if others:
                typer.echo(f"\nOther operators of this name: {', '.join(others)}")
        return
    rows = [
        (name.lower(), str(facts_of(name).since), summary)
        for name, summary in operator_summaries().items()
        if wanted in name.lower() or wanted in summary.lower()
    ]
    if not rows:
        dml.operator_class(wanted)  # names the one that may be meant
    if as_json:
        print_json([dict(zip(("name", "feature_level", "summary"), row, strict=True)) for row in rows])
    else:
        print_table(("operator", "from level", "what it does"), rows)


def _onnx_operators(word: str, *, as_json: bool) -> None:
    from ..reference.onnx_page import onnx_names, onnx_page, onnx_reference

    names = onnx_names()
    if word.lower() in [name.lower() for name in names]:
        reference = onnx_reference(word)
        if as_json:
            print_json(reference.to_json())
        else:
            _print_page(onnx_page(reference))
        return
    found = [each for each in map(onnx_reference, names) if word.lower() in f"{each.op_type} {each.summary}".lower()]
    if not found:
        onnx_reference(word)  # names the one that may be meant
    if as_json:
        print_json([{"op_type": each.op_type, "versions": _versions(each.versions)} for each in found])
    else:
        rows = [
            (each.op_type, ", ".join(map(str, _versions(each.versions))), ", ".join(each.twins) or "-")
            for each in found
        ]
        print_table(("operator", "versions", "in DirectML"), rows)


def _versions(schemas: Sequence[OnnxSchema]) -> list[int]:
    return [schema.since_version for schema in schemas]


def _print_page(page: Sequence[PageBlock]) -> None:
    """The page as text: tables as tables, code indented, without Markdown's marks."""
    from ..reference.page_blocks import PageCode, PageHeading, PageTable

    for number, block in enumerate(page):
        if number:
            typer.echo()
        match block:
            case PageHeading(text, _):
                typer.secho(text, bold=True)
            case PageCode(_, text):
                typer.echo("\n".join(f"    {line}" for line in text.split("\n")))
            case PageTable(heads, rows):
                print_table(heads, [[cell.replace("`", "") for cell in row] for row in rows])
            case _:
                typer.echo(block.text.replace("`", ""))
