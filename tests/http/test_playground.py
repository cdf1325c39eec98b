"""The files of the page at `/` over HTTP; tests/browser shows what the page does."""

from __future__ import annotations

import re

from tests.support.http_app import http_app

MEDIA_TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}


def test_the_page_and_everything_that_it_loads_comes_from_here():
    with http_app() as app:
        page = app.get("/")

        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'; script-src 'self';" in page.headers["content-security-policy"]
        assert "https:" not in page.text
        loaded = {*re.findall(r'(?:href|src)="(playground/[^"]+)"', page.text)}
        modules = {"playground/main.js"}
        while modules:
            source = app.get(f"/{modules.pop()}").text
            imported = {f"playground/{file}" for file in re.findall(r'from "\./([^"]+)"', source)}
            modules |= imported - loaded
            loaded |= imported
        assert len(loaded) > 10
        for name in loaded:
            file = app.get(f"/{name}")
            assert (file.status_code, file.headers["content-type"]) == (200, MEDIA_TYPES[name.rpartition(".")[2]]), name
            assert file.headers["x-content-type-options"] == "nosniff"
            again = app.get(f"/{name}", headers={"if-none-match": file.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        for other in ("", "index.html", "none.js", "..%2fmain.py"):
            assert app.get(f"/playground/{other}").status_code == 404


def test_a_setting_turns_it_off():
    with http_app(playground=False) as app:
        assert app.get("/").status_code == app.get("/playground/main.js").status_code == 404
