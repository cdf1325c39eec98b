"""The structure of both packages as a table and a picture, from the import graph that import-linter checks.

    python -m tests.support.docs_tables        write both anew, from the root of the repository

A box is a package, or a module of the server beside its packages; the SDK's modules beside its packages are one box.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache

import grimp

__all__ = ["Box", "boxes", "picture", "rows_of", "structure_table"]

SERVER, CLIENT = "tensorpost_server", "tensorpost"
CLIENTS = "clients"
WIDTH, HEIGHT, RISE, MARGIN = 140, 30, 42, 16  # of a box, from one box to the next, around all; pixels

Box = str
Edges = Mapping[Box, frozenset[Box]]


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(CLIENT, SERVER, include_external_packages=True, cache_dir=None)


def _box_of(module: str) -> Box | None:
    """The box of a module; None for the packages themselves, for public names of inner modules, and for others'."""
    root, _, rest = module.partition(".")
    if root not in (SERVER, CLIENT) or not rest:
        return None
    name = rest.partition(".")[0]
    if root == SERVER or name == "__main__" or _graph().find_children(f"{CLIENT}.{name}"):
        return name
    imported = _graph().find_modules_directly_imported_by(module)
    return None if {each.rpartition(".")[2] for each in imported} == {name} else CLIENTS


@cache
def boxes() -> tuple[Edges, Mapping[Box, frozenset[str]]]:
    """Which boxes each box imports, and which packages of others."""
    graph = _graph()
    ours: dict[Box, set[Box]] = {}
    others: dict[Box, set[str]] = {}
    for module in graph.modules:
        box = _box_of(module)
        if box is None:
            continue
        ours.setdefault(box, set())
        others.setdefault(box, set())
        for imported in graph.find_modules_directly_imported_by(module):
            target, package = _box_of(imported), imported.partition(".")[0]
            if target is not None and target != box:
                ours[box].add(target)
            elif target is None and package not in (SERVER, CLIENT, *sys.stdlib_module_names):
                others[box].add(package)
    return {box: frozenset(found) for box, found in ours.items()}, {
        box: frozenset(found) for box, found in others.items()
    }


def rows_of(edges: Edges) -> dict[Box, int]:
    """The row of each box, 0 for those that import no other; every import points to a lower row.

    Raises:
        ValueError: a circle of imports, which has no rows.
    """
    known: dict[Box, int] = {}

    def row(box: Box, above: tuple[Box, ...] = ()) -> int:
        if box in above:
            raise ValueError(f"a circle of imports: {' -> '.join([*above, box])}")
        if box not in known:
            known[box] = 1 + max([row(each, (*above, box)) for each in edges[box]], default=-1)
        return known[box]

    for box in sorted(edges):
        row(box)
    return known


def structure_table() -> str:
    """One row per box, from the top down: what it imports of ours and of others."""
    edges, others = boxes()
    lines = ["| Box | Imports of ours | Imports of others |", "| --- | --- | --- |"]
    rows = rows_of(edges)
    for box in sorted(edges, key=lambda each: (-rows[each], each)):
        lines.append(f"| {box} | {', '.join(sorted(edges[box])) or '-'} | {', '.join(sorted(others[box])) or '-'} |")
    return "\n".join(lines) + "\n"


def picture() -> str:
    """The boxes as SVG, one under the other, importers first; an arrow that follows from two others is left out."""
    edges, _ = boxes()
    rows = rows_of(edges)
    order = sorted(rows, key=lambda box: (-rows[box], box))
    middle = {box: MARGIN + place * RISE + HEIGHT // 2 for place, box in enumerate(order)}
    right, shapes = MARGIN + WIDTH, list[str]()
    for box in order:
        for target in sorted(edges[box] - {far for near in edges[box] for far in _reached(edges, near)}):
            begin, end = middle[box] + 4, middle[target] - 4
            reach = right + 24 + (end - begin) * 2 // 5
            shapes.append(f'<path class="arrow" d="M{right} {begin}C{reach} {begin} {reach} {end} {right + 4} {end}"/>')
    servers = {name.rpartition(".")[2] for name in _graph().find_children(SERVER)}
    for box in order:
        y, kind = middle[box], "server" if box in servers else "client"
        shapes.append(f'<rect class="{kind}" x="{MARGIN}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}"/>')
        shapes.append(f'<text x="{MARGIN + WIDTH // 2}" y="{y + 5}">{box}</text>')
    width, height = right + 3 * WIDTH // 2 + MARGIN, MARGIN + len(order) * RISE
    style = (
        ".arrow{fill:none;stroke:#667;marker-end:url(#head)}rect{stroke:#334}.server{fill:#dbe8f6}"
        ".client{fill:#e4f0d8}text{font:14px sans-serif;text-anchor:middle;fill:#112}"
    )
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" style="fill:#667"/></marker>'
    )
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    paper = f'<rect width="{width}" height="{height}" style="fill:#fff;stroke:none"/>'
    return "\n".join([begin, f"<style>{style}</style>", paper, head, *shapes, "</svg>"]) + "\n"


def _reached(edges: Edges, start: Box) -> set[Box]:
    """Every box that is imported by this one, directly or through others."""
    found: set[Box] = set()
    todo = [*edges[start]]
    while todo:
        box = todo.pop()
        if box not in found:
            found.add(box)
            todo += edges[box]
    return found
