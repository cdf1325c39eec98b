"""A problem document as a page, for people who open an address in a browser."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of the page, which loads and runs nothing."""

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{status} {title}</title>
<style>:root{{color-scheme:light dark}}
body{{font:1rem/1.5 system-ui,sans-serif;margin:2rem auto;max-width:50rem;padding:0 1rem}}
pre{{white-space:pre-wrap;overflow-wrap:anywhere}}</style>
<h1>{status} {title}</h1>
<p>{detail}</p>
{violations}<p><a href="{root}/docs">What this service understands</a></p>
<details><summary>The problem as JSON, which programs get</summary><pre>{document}</pre></details>
</html>
"""


def wants_page(accept: str) -> bool:
    """Whether the caller asks for HTML and for no JSON: browsers do, when an address is opened."""
    types = [part.partition(";")[0].strip().lower() for part in accept.split(",", 64)]
    return "text/html" in types and not {"application/json", "application/problem+json"} & {*types}


def problem_page(problem: Mapping[str, Any], root: str) -> bytes:
    """The page of a problem (RFC 9457)."""
    items = [
        f"<li><code>{html.escape(str(each['path']))}</code>: {html.escape(str(each['message']))}</li>\n"
        for each in problem.get("violations", [])
    ]
    text = _PAGE.format(
        status=problem["status"],
        title=html.escape(str(problem["title"])),
        detail=html.escape(str(problem["detail"])),
        violations=f"<ul>\n{''.join(items)}</ul>\n" if items else "",
        root=html.escape(root),
        document=html.escape(json.dumps(problem, indent=2, ensure_ascii=False)),
    )
    return text.encode("utf-8", "replace")
