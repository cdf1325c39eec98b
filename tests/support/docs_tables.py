"""The tables in `docs/` that say what the code says: settings, problems, endpoints, commands, operators, structure.

    python -m tests.support.docs_tables        write them anew, from the root of the repository

`conformance.json` of the server, which has the table of operators, and what `reference/` of the SDK says of each
operator are written with them. They are checked in, and `tests/repository/test_docs_complete.py` compares them whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer.main
from fastapi import FastAPI
from tests.support.conformance_table import (
    conformance,
    conformance_text,
    directml_differences,
    left_to_onnx_runtime,
)
from tests.support.http_app import app_settings
from tests.support.openapi_examples import examples_text
from tests.support.operator_notes import notes_text
from tests.support.structure import picture, structure_table

from tensorpost.command_line import cli as _cli
from tensorpost.descriptors import OPERATORS
from tensorpost.reference.onnx_page import onnx_names, onnx_reference
from tensorpost.reference.operator_reference import EXAMPLES, NOTES
from tensorpost.reference.page_blocks import PageBlock, PageHeading, PageTable, PageText, blocks_markdown
from tensorpost.values.problems import ConnectionProblem, TensorpostError, problem_classes
from tensorpost_server.http.documents.conformance import CONFORMANCE
from tensorpost_server.http.error_responses import status_of
from tensorpost_server.http.observability.metrics import METRICS
from tensorpost_server.main import create_app
from tensorpost_server.settings import ENVIRONMENT_PREFIX, Settings, setting_descriptions

__all__ = ["DOCS", "PICTURE", "TABLES", "between_marks", "with_table"]

DOCS = Path(__file__).parents[2] / "docs"
PICTURE = DOCS / "images" / "structure.svg"
BEGIN, END = "<!-- begin: written by tests/support/docs_tables.py -->\n", "<!-- end -->\n"


def settings_table() -> str:
    """Every setting: variable, default, description with unit and reason."""
    rows: list[Sequence[str]] = []
    descriptions = setting_descriptions()
    for name, field in Settings.model_fields.items():
        # Where nothing is a choice of its own, it means what it says; else the description says what is found out.
        description = descriptions[name]
        by_machine = field.default_factory or (field.default is None and "Default:" in description)
        default = "by machine" if by_machine else "none" if field.default is None else f"`{field.default}`"
        rows.append((f"`{ENVIRONMENT_PREFIX}{name.upper()}`", default, description))
    return _table(("Variable", "Default", "Meaning"), rows)


def problems_table() -> str:
    """Every problem code, with its status, its exception and the first sentence of its docstring."""
    rows: list[Sequence[str]] = []
    for code, cls in problem_classes().items():
        served = cls is not TensorpostError and not issubclass(cls, ConnectionProblem)
        status = str(status_of(cls(""))) if served else "never sent"
        rows.append((f"`{code}`", status, f"`{cls.__name__}`", _first_paragraph(cls.__doc__)))
    return _table(("Code", "Status", "Exception", "Meaning"), sorted(rows, key=lambda row: (row[1], row[0])))


def endpoints_table() -> str:
    """Every operation of the OpenAPI document."""
    paths: Mapping[str, Mapping[str, Any]] = FastAPI.openapi(create_app(app_settings()))["paths"]  # not a path for each
    rows = [
        (f"`{method.upper()} {path}`", operation["summary"], _first_paragraph(operation["description"]))
        for path, operations in paths.items()
        for method, operation in operations.items()
    ]
    return _table(("Request", "What", "Answer"), rows)


def commands_table() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(_cli.app)
    rows: list[Sequence[str]] = []
    for name, command in _commands(group):
        parameters = " ".join(f"`{_parameter(parameter)}`" for parameter in command.params)
        rows.append((f"`tensorpost {name}`", parameters, _first_paragraph(command.help)))
    return _table(("Command", "Arguments and options", "What it does"), rows)


def metrics_table() -> str:
    """Every metric, with its kind and labels."""
    rows = [
        (f"`{name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.help)
        for name, metric in METRICS.items()
    ]
    return _table(("Metric", "Kind", "Labels", "Meaning"), rows)


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name, those of groups included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def operators_table() -> str:
    """Every DirectML operator by family, then ONNX's: those with a row, and ONNX Runtime's."""
    blocks: list[PageBlock] = []
    for family in dict.fromkeys(cls.facts.family for cls in OPERATORS):
        rows = [
            (cls.operator_type, str(cls.facts.since), cls.summary) for cls in OPERATORS if cls.facts.family == family
        ]
        blocks += [PageHeading(family), PageTable(("DirectML operator", "From level", "What it computes"), tuple(rows))]
    rows = [
        (each.op_type, ", ".join(str(schema.since_version) for schema in each.versions), ", ".join(each.twins))
        for each in map(onnx_reference, onnx_names())
    ]
    blocks += [PageHeading("ONNX"), PageTable((f"ONNX operator ({len(rows)})", "Versions", "In DirectML"), tuple(rows))]
    others = ", ".join(left_to_onnx_runtime())
    blocks.append(PageText(f"Left to ONNX Runtime, as far as it has them: {others}."))
    return blocks_markdown(blocks)


def operator_tests_table() -> str:
    """Every DirectML operator with what its vectors found."""
    heads = ("DirectML operator", "Cases", "Result", "`numpy`", "`numba`", "`cuda`", "`directml`")
    differences = directml_differences()
    rows: list[Sequence[str]] = []
    for name, row in conformance().items():
        near = [f"{row['ulp']:g} ulp"] if row["ulp"] else []
        near += [f"{row['absolute']:g}"] if row["absolute"] else []
        ways = [
            " + ".join(f"{count} {way}" if len(found) > 1 else way for way, count in found.items())
            for found in row["backends"].values()
        ]
        ways[-1] += f", {differences[name]} differ" if name in differences else ""
        rows.append((name, str(row["cases"]), ", ".join(near) or "exact", *ways))
    return _table(heads, rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "settings.md": settings_table,
    "errors.md": problems_table,
    "http.md": endpoints_table,
    "command-line.md": commands_table,
    "architecture.md": structure_table,
    "operators.md": operators_table,
    "operator-tests.md": operator_tests_table,
    "operations.md": metrics_table,
}
"""The page with each table."""


def between_marks(page: str) -> str:
    """The table that stands in a page."""
    return page.split(BEGIN, 1)[1].split(END, 1)[0]


def with_table(page: str, table: str) -> str:
    """The page with another table in its place."""
    before, rest = page.split(BEGIN, 1)
    return before + BEGIN + table + END + rest.split(END, 1)[1]


def _parameter(parameter: Any) -> str:
    names = list(parameter.opts)
    return parameter.metavar or names[0].upper() if parameter.param_type_name == "argument" else ", ".join(names)


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n", 1)[0].split())


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def lines() -> Iterator[str]:
        yield "| " + " | ".join(heads) + " |"
        yield "|" + " --- |" * len(heads)
        for row in rows:
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"

    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    for name, table in TABLES.items():
        path = DOCS / name
        path.write_text(with_table(path.read_text(), table()))
    PICTURE.write_text(picture())
    CONFORMANCE.write_text(conformance_text())
    NOTES.write_text(notes_text())
    EXAMPLES.write_text(examples_text())
