"""Every vectors file over HTTP against a real server in another process: as a frame, as npy and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.conformance.wire import FORMS, Request, Server, requests
from tests.support.batches import each
from tests.support.http_app import JSON
from tests.support.live_server import default_server
from tests.support.vectors import VectorsFile, all_hold, vectors_files

from tensorpost.values.problems import json_path

FILES = vectors_files()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with default_server() as found:
        yield found


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[Server]:
    opened = Server(url)
    yield opened
    opened.close()


@pytest.mark.parametrize("form", FORMS)
@each("file", FILES, ids=str)
def test_vectors(server: Server, file: VectorsFile, form: str):
    sayable = [case for case in file.cases if any(requests(case, form))]

    all_hold(sayable, lambda case: [server.check(case, request) for request in requests(case, form)])


def test_each_form_says_what_it_should():
    said = {form: {file.path for file in FILES for case in file.cases if any(requests(case, form))} for form in FORMS}

    assert said["frame"] == said["JSON"] == {file.path for file in FILES}
    # npy holds one tensor; GEMM and CONVOLUTION need two, JOIN may have more.
    several = {str(file) for file in FILES if len(file.cases[0].desc.inputs) > 1} | {"join"}
    assert {file.path for file in FILES} - said["npy"] == several
    assert len(several) > 8


@each("file", [file for file in FILES if file.rejected], ids=str)
def test_what_must_be_rejected_is_and_all_is_named(server: Server, file: VectorsFile):
    for case in file.rejected:
        request = Request("/v1/validate", JSON, json.dumps(case.document).encode())
        status, _, body = server.post(request)
        assert status == 200, (case.name, body)
        found = json.loads(body)
        assert not found["valid"]
        paths = [violation["path"].replace(json_path(["desc"]), "$", 1) for violation in found["violations"]]
        codes = [violation["code"] for violation in found["violations"]]
        assert tuple(sorted(map(" ".join, zip(codes, paths, strict=True)))) == case.violations, case.name
