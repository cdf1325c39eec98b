"""`/docs`: a list of all routes and operators, a page for each, and the OpenAPI document of one path alone.

The list is HTML and loads nothing. An operator's page shows its facts at once; Swagger UI and the schema of the
operator are loaded when its part `Try it` is opened. `/openapi.json` stays the whole document, for programs.
"""

from __future__ import annotations

import asyncio
import html
import itertools
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tensorpost.descriptors import OPERATORS
from tensorpost.reference.onnx_page import onnx_names, onnx_page, onnx_reference
from tensorpost.reference.operator_page import operator_page
from tensorpost.reference.operator_reference import operator_reference
from tensorpost.reference.page_blocks import blocks_html

from ..routes.json_document import JsonDocument
from ..wires.directml_dialect import served_operator
from .openapi import excerpt, operator_line

router = APIRouter(include_in_schema=False)

_ASSETS = "/static-offline-docs"  # Swagger UI's files, which fastapi_offline serves
_METHODS = ("get", "post", "put", "delete")

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--muted:#666;--accent:#0f6f6a}
@media (prefers-color-scheme:dark){:root{--muted:#aaa;--accent:#4fc3b8}}
*{box-sizing:border-box}
body{font:1rem/1.5 system-ui,sans-serif;margin:0 auto;max-width:64rem;padding:1rem}
a{color:var(--accent);text-underline-offset:3px}
h1{font-size:1.6rem;overflow-wrap:anywhere}h2{font-size:1.2rem;margin-top:2rem}h3{font-size:1rem;margin:1.2rem 0 .3rem}
code,pre{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:.9em}
pre{border:1px solid var(--line);border-radius:6px;overflow:auto;padding:.7rem;white-space:pre-wrap;
overflow-wrap:anywhere}
.wide{overflow:auto}
.wide+.wide{margin-top:1rem}
table{border-collapse:collapse}th,td{border-bottom:1px solid var(--line);padding:.3rem .8rem .3rem 0;text-align:left;
vertical-align:top}
@media (max-width:40rem){
.wide table,.wide tbody,.wide tr,.wide td{display:block}.wide tr{border-bottom:1px solid var(--line);padding:.4rem 0}
.wide tr:first-child{display:none}.wide td{border:0;overflow-wrap:anywhere;padding:.1rem 0 .1rem 8rem;position:relative}
.wide td::before{color:var(--muted);content:attr(data-column);left:0;position:absolute;width:7.5rem}
}
ul.list{list-style:none;margin:0;padding:0}ul.list li{overflow-wrap:anywhere;padding:.15rem 0}
ul.list span{color:var(--muted)}
input{font:inherit;max-width:100%;padding:.4rem .6rem;width:28rem}
details{border:1px solid var(--line);border-radius:6px;margin-top:2rem}
summary{cursor:pointer;font-weight:600;padding:.7rem}
#swagger{background:#fff;color:#000;color-scheme:light}
"""

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><link rel="icon" href="{root}{assets}/favicon.png">
<style>{style}</style>
<nav><a href="{root}/docs">All routes and operators</a></nav>
<main>
{content}</main>
{script}</html>
"""

_FILTER = """<script>
const filter = document.getElementById("filter");
const rows = [...document.querySelectorAll("ul.list li")];
const texts = rows.map((row) => row.textContent.toLowerCase());
filter.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\\s+/);
  rows.forEach((row, at) => { row.hidden = !words.every((word) => texts[at].includes(word)); });
  for (const part of document.querySelectorAll("section")) part.hidden = !part.querySelector("li:not([hidden])");
});
</script>
"""
"""Hides the rows that have not all words, and the sections without rows."""

_TRY = """<details id="try"{open}><summary>Try it</summary>
<div id="swagger" data-schema="{schema}" data-script="{script}" data-style="{style}"></div></details>
"""

_LOAD = """<script>
const part = document.getElementById("try");
const target = document.getElementById("swagger");
const load = () => {
  if (!part.open || target.dataset.loaded) return;
  target.dataset.loaded = "1";
  const style = document.createElement("link");
  Object.assign(style, { rel: "stylesheet", href: target.dataset.style });
  const script = document.createElement("script");
  script.src = target.dataset.script;
  script.onload = () => SwaggerUIBundle({
    url: target.dataset.schema, domNode: target, docExpansion: "full", tryItOutEnabled: true,
    defaultModelsExpandDepth: -1, validatorUrl: null,
  });
  script.onerror = () => { target.textContent = `${script.src} could not be loaded`; };
  document.head.append(style, script);
};
part.addEventListener("toggle", load);
load();
</script>
"""
"""Loads Swagger UI and the schema when the part is opened."""


@router.get("/docs/", include_in_schema=False)
@router.get("/docs")
async def docs_list(request: Request) -> HTMLResponse:
    """Every route, every operator of DirectML and of ONNX, each with a link to its page."""
    general = await asyncio.to_thread(request.app.state.general_openapi)
    return _page(request, "tensorpost", "".join(_list(_root(request), general)), _FILTER)


@router.get("/docs/operators/{operator}")
async def operator_docs(request: Request) -> HTMLResponse:
    """The page of one of DirectML's operators."""
    cls = served_operator(request.path_params["operator"])
    content = blocks_html(operator_page(operator_reference(cls.operator_type)))
    path = f"/v1/operators/{cls.operator_type.lower()}"
    return _page(request, f"{cls.operator_type} - tensorpost", content + _try(request, path), _LOAD)


@router.get("/docs/onnx/{op_type}")
async def onnx_docs(request: Request) -> HTMLResponse:
    """The page of one of ONNX's operators."""
    reference = onnx_reference(request.path_params["op_type"])
    content = blocks_html(onnx_page(reference)) + _try(request, f"/v1/onnx/{reference.op_type}")
    return _page(request, f"ONNX {reference.op_type} - tensorpost", content, _LOAD)


@router.get("/docs/routes/{path:path}")
async def route_docs(request: Request) -> HTMLResponse:
    """The page of any other route."""
    path = f"/{request.path_params['path']}"
    general = await asyncio.to_thread(request.app.state.general_openapi)
    if excerpt(general, path) is None or path not in general["paths"]:
        raise HTTPException(404)
    content = f"<h1>{html.escape(path)}</h1>\n{_try(request, path, is_open=True)}"
    return _page(request, f"{path} - tensorpost", content, _LOAD)


@router.get("/docs/schemas/{path:path}")
async def path_schema(request: Request) -> Response:
    """The OpenAPI document of one path, for example `/docs/schemas/v1/operators/tile`."""
    general: Mapping[str, Any] = await asyncio.to_thread(request.app.state.general_openapi)
    found = excerpt(general, f"/{request.path_params['path']}")
    if found is None:
        raise HTTPException(404)
    root = _root(request)
    return JsonDocument({**found, "servers": [{"url": root}]} if root else found)


def _root(request: Request) -> str:
    """The prefix that a proxy serves this below; empty without one."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def _page(request: Request, title: str, content: str, script: str) -> HTMLResponse:
    root = html.escape(_root(request))
    text = _PAGE.format(
        title=html.escape(title), root=root, assets=_ASSETS, style=_STYLE, content=content, script=script
    )
    return HTMLResponse(text)


def _try(request: Request, path: str, *, is_open: bool = False) -> str:
    root = _root(request)
    return _TRY.format(
        open=" open" if is_open else "",
        schema=html.escape(f"{root}/docs/schemas{quote(path)}"),
        script=html.escape(f"{root}{_ASSETS}/swagger-ui-bundle.js"),
        style=html.escape(f"{root}{_ASSETS}/swagger-ui.css"),
    )


def _list(root: str, general: Mapping[str, Any]) -> Iterator[str]:
    """The parts of the list.

    Args:
        root: what every address begins with.
        general: FastAPI's document, without a path for each operator.
    """
    info = general["info"]
    sentence, _, example = str(info["description"]).partition("\n\n")
    yield f"<h1>{html.escape(info['title'])} {html.escape(info['version'])}</h1>\n<p>{html.escape(sentence)}</p>\n"
    yield f"<pre><code>{html.escape(_dedented(example))}</code></pre>\n"
    yield f'<p>The whole description for programs: <a href="{html.escape(root)}/openapi.json">openapi.json</a>.</p>\n'
    words = "gather, pooling, resize, health ..."
    yield f'<p><input id="filter" type="search" placeholder="{words}" aria-label="Filter"></p>\n'
    yield _section("Routes", _route_rows(root, general))
    yield '<div id="operators"></div>\n'
    operators = sorted(OPERATORS, key=lambda cls: (cls.facts.family, cls.operator_type))
    for family, members in itertools.groupby(operators, key=lambda cls: cls.facts.family):
        rows = [(f"{root}/docs/operators/{c.operator_type.lower()}", c.operator_type, c.summary) for c in members]
        yield _section(f"DirectML: {family}", rows)
    names = [(f"{root}/docs/onnx/{name}", name, onnx_reference(name).newest.summary) for name in onnx_names()]
    yield _section("ONNX", names)


def _route_rows(root: str, general: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Address, method and path, and summary of every route."""
    rows: list[tuple[str, str, str]] = []
    for path, item in general["paths"].items():
        for method in _METHODS:
            if method in item:
                address = f"{root}/docs/routes{quote(path)}"
                if method == "post" and path.endswith(("{operator}", "{op_type}")):
                    address = "#operators" if path.endswith("{operator}") else "#onnx"
                rows.append((address, f"{method.upper()} {path}", item[method]["summary"]))
    return rows


def _section(title: str, rows: list[tuple[str, str, str]]) -> str:
    anchor = "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())
    items = "".join(
        f'<li><a href="{html.escape(address)}">{html.escape(name)}</a> <span>{html.escape(_plain(text))}</span></li>\n'
        for address, name, text in rows
    )
    return f'<section id="{anchor}"><h2>{html.escape(title)}</h2>\n<ul class="list">\n{items}</ul></section>\n'


def _plain(summary: str) -> str:
    """The first half of a summary, without Markdown."""
    return operator_line("", summary).removeprefix(": ")


def _dedented(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.rstrip().splitlines())
