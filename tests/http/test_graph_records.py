"""What is recorded of a graph: its nodes and the slowest of them in the access log, a span for each step."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from tests.support.http_app import (
    FRAME,
    JSON,
    NPY,
    AppClient,
    eventually,
    http_app,
    npy_bytes,
    request_bytes,
    serving,
    use_backend,
)
from tests.support.request_records import Records
from tests.support.spans import SpanMemory, attributes, begin_and_end
from tests.support.watched_steps import WatchedBackend, chain, tensor_in_json

from tensorpost.bodies.frame import encode_head
from tensorpost.values.datatypes import data_type
from tensorpost_server.engine import InlineLimits
from tensorpost_server.http.access.api_keys import new_key
from tensorpost_server.http.observability.access_log import console_line, json_line
from tensorpost_server.http.observability.request_record import RequestRecord
from tensorpost_server.http.observability.traces import Traces

SLEEP = 0.05  # seconds: much longer than a step of a few numbers takes
OF_GRAPHS = {"nodes", "slowest_node", "slowest_node_ms"}


def slow(name: str) -> WatchedBackend:
    """A backend that needs `SLEEP` for each part of the step of this name."""
    return WatchedBackend(lambda begun: time.sleep(SLEEP) if begun == name else None)


def post(app: AppClient, graph: Any, *numbers: float, **headers: str) -> Any:
    body = {"graph": graph, "tensors": {"x": tensor_in_json(*numbers)}}
    return app.post("/v1/graphs", json.dumps(body), {**JSON, **headers})


def records_of(app: AppClient) -> list[RequestRecord]:
    app.service.records = records = Records()
    return records.found


def test_a_line_has_the_nodes_and_the_slowest_of_them():
    with http_app() as app, use_backend(app.service, slow("b")):
        found = records_of(app)
        assert post(app, chain("a", "b", "c"), 1, 2).json()["tensors"]["y"]["data"] == [1, 5]  # 1, 3; 1, 4; 1, 5
        assert post(app, chain("a", "c"), 1, 2).status_code == 200
    line, other = [json.loads(json_line(record)) for record in found]

    assert (line["operator"], line["nodes"], line["slowest_node"]) == ("graph", 3, "b")
    assert SLEEP * 1e3 <= line["slowest_node_ms"] <= line["ms"]
    assert other["nodes"] == 2
    assert other["slowest_node_ms"] <= other["ms"]
    assert f" nodes=3 slowest_node=b slowest_node_ms={line['slowest_node_ms']} in=" in console_line(found[0])


def test_the_parts_of_a_step_count_together_and_the_step_that_streams_too():
    x = np.zeros(4096, np.float32)
    nodes = [
        {"name": "sums", "op_type": "CumSum", "inputs": {"x": "x", "axis": [0]}},
        {"name": "many", "op_type": "Tile", "inputs": {"input": "sums", "repeats": [3]}},
    ]
    head = encode_head(
        [("x", data_type("float32"), x.shape)],
        {"graph": json.dumps({"inputs": {"x": {}}, "nodes": nodes, "outputs": {"y": "many"}})},
    )
    with http_app(slice_bytes=4096) as app, use_backend(app.service, slow("many")):
        app.service.workers().workers["numpy"].inline = InlineLimits(bytes=4096)
        found = records_of(app)
        assert app.post("/v1/graphs", head + x.tobytes(), FRAME).status_code == 200
    (record,) = found
    assert record.graph is not None
    slowest = record.graph.slowest

    assert slowest is not None
    assert (slowest.node, slowest.operator, slowest.phase.parts, record.slices) == ("many", "Tile", 12, 12)
    assert slowest.phase.busy >= 12 * SLEEP * 1e9


def test_replayed_graphs_have_it_too_and_a_fused_step_has_the_name_of_its_last_node():
    nodes = [{"name": "a", "op_type": "Neg", "inputs": "x"}, {"name": "b", "op_type": "Exp", "inputs": "a"}]
    graph = json.dumps({"inputs": {"x": {}}, "nodes": nodes, "outputs": {"y": "b"}})
    head = encode_head([("x", data_type("float32"), (2,))], {"graph": graph})
    records = Records()
    with serving() as server, server.wire() as wire:
        server.service.records = records
        for _ in range(4):
            wire.send(request_bytes("POST", "/v1/graphs", head + bytes(8), FRAME))
            assert wire.answer().status == 200
        eventually(lambda: len(records.found) == 4, "every request has ended")

    graphs = [record.graph for record in records.found]
    assert [(each.nodes, each.slowest.node) for each in graphs if each and each.slowest] == [(2, "b")] * 4


def test_other_lines_have_no_such_members_and_a_graph_that_was_not_computed_has_no_slowest_node():
    with http_app() as app:
        found = records_of(app)
        app.post("/v1/operators/tile?repeats=2", npy_bytes([1, 2]), NPY)
        post(app, {"nodes": []}, 1)
        post(app, chain("a", "b"), 1, **{"x-request-id": "7"})
        app.post("/v1/graphs?backend=null", json.dumps({"graph": chain("a"), "tensors": {}}), JSON)
    with http_app(max_work=1) as app:
        refused = records_of(app)
        post(app, chain("a", "b"), 1, 2, 3)
    lines = [json.loads(json_line(record)) for record in [*found, *refused]]

    assert [OF_GRAPHS & line.keys() for line in lines] == [set(), set(), OF_GRAPHS, set(), set()]


def test_names_are_written_as_other_texts_of_callers():
    key = new_key()
    names = {
        'a"b': r"a\x22b", "two words\n": r"two\x20words\n", "\x1b[31m": r"\x1b[31m", "ä": r"\xe4", key: "***",
        "n" * 100: "n" * 100,
    }  # fmt: skip
    with http_app() as app:
        found = records_of(app)
        for name in names:
            assert post(app, chain(name), 1).status_code == 200
    for record, expected in zip(found, names.values(), strict=True):
        text = json_line(record)
        assert json.loads(text)["slowest_node"] == expected.replace(r"\x22", '"')
        assert text.isascii()
        assert key not in text + console_line(record)


def test_a_span_for_each_step_below_the_call():
    memory = SpanMemory()
    nodes = [
        *chain("s\x1bum")["nodes"],
        {"name": "many", "type": "TILE", "inputs": "s\x1bum", "desc": {"Repeats": [2]}},
        {"name": "minus", "op_type": "Neg", "inputs": "many"},
        {"name": "plus", "op_type": "Abs", "inputs": "minus"},
    ]
    with http_app() as app:
        app.service.observe_by(None, Traces(memory.provider, ours=False))
        answer = post(app, {"inputs": {"x": {}}, "nodes": nodes, "outputs": {"y": "plus"}}, 1, 2)
        app.service.observe_by(None)
    assert answer.json()["tensors"]["y"]["data"] == [1, 3, 1, 3]
    (root,) = memory.roots()
    children = memory.below(root)
    steps = {name: attributes(span) for name, span in children.items() if name.startswith("step ")}

    assert (root.name, attributes(root)["http.route"]) == ("POST /v1/graphs", "/v1/graphs")
    found = {(each["tensorpost.operator"], each["tensorpost.node"]) for each in steps.values()}
    assert ("CumSum", r"s\x1bum") in found
    assert len(steps) == len(found) <= 3, "the element-wise ones are one step"
    for name in steps:
        (first, last), (begin, end) = begin_and_end(children["kernel"]), begin_and_end(children[name])
        assert first <= begin <= end <= last
        assert steps[name]["tensorpost.parts"] == 1
        assert 0 < steps[name]["tensorpost.busy_seconds"] <= (end - begin) / 1e9


def test_no_text_of_a_caller_is_a_label():
    graph = chain("secret_name")
    graph["outputs"] = {"secret_output": "secret_name"}
    with http_app() as app:
        assert post(app, graph, 1).status_code == 200
        post(app, {**graph, "outputs": {"secret_output": "secret_other"}}, 1)
        metrics = app.get("/metrics").text

    assert 'operator="graph"' in metrics
    assert "secret" not in metrics
