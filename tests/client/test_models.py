"""ONNX models as graphs, beside ONNX Runtime, which runs them as they are."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.backend.test
import onnxruntime
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

import onnx
from onnx import TensorProto, helper, numpy_helper
from tensorpost import Client
from tensorpost.calls.model_calls import load_model, model_call
from tensorpost.command_line.cli import app
from tensorpost.datatypes import DATA_TYPES, data_type
from tensorpost.problems import InvalidDescriptor, InvalidParameter, TensorMismatch, TensorpostError

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(1)
EXPORTED = Path(__file__).parent / "onnx_models"
LIGHT = Path(onnx.backend.test.__path__[0]) / "data" / "light"


def value(name: str, kind: int, *sizes: int | str | None) -> Any:
    return helper.make_tensor_value_info(name, kind, sizes)


def model_of(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], constants: Mapping[str, Any] | None = None,
    opset: int = 17, functions: Sequence[Any] = (), domains: Sequence[str] = (),
) -> onnx.ModelProto:  # fmt: skip
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), *[helper.make_opsetid(domain, 1) for domain in domains]]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)
    onnx.checker.check_model(made)
    return made


def by_runtime(model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    made: Sequence[Any] = session.run(names, dict(inputs))
    return dict(zip(names, made, strict=True))


def classifier() -> onnx.ModelProto:
    """A small network of convolutions, as exporters write it: sizes computed by nodes, names with dots."""
    constants = {
        "conv.weight": RNG.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "fc.weight": RNG.standard_normal((4 * 8 * 8, 10)).astype(np.float32),
        "fc.bias": RNG.standard_normal(10).astype(np.float32),
        "zero": np.int64(0), "axis": np.array([0]), "rest": np.array([-1]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["image", "conv.weight"], ["/conv/Conv.0"], name="/conv/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["/conv/Conv.0"], ["relu"]),
        helper.make_node("MaxPool", ["relu"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Shape", ["pooled"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["count"], axis=0),
        helper.make_node("Unsqueeze", ["count", "axis"], ["counts"]),
        helper.make_node("Concat", ["counts", "rest"], ["flat_shape"], axis=0),
        helper.make_node("Reshape", ["pooled", "flat_shape"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["output.1"], axis=1),
    ]
    outputs = [value("output.1", FLOAT, "n", 10), value("scores", FLOAT, "n", 10)]
    return model_of(nodes, [value("image", FLOAT, "n", 3, 16, 16)], outputs, constants)


def test_a_network_gives_what_onnx_runtime_gives(server_url: str, tmp_path: Path):
    model = classifier()
    image = RNG.standard_normal((2, 3, 16, 16)).astype(np.float32)
    expected = by_runtime(model, {"image": image})
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())

    with Client(server_url) as tp:
        by_proto = tp.run_model(model, {"image": image})
        by_path = tp.run_model(path, image, outputs=["scores"])
        by_bytes = tp.run_model(path.read_bytes(), {"image": image.tolist()} | {"image": image})

    assert list(by_proto) == ["output.1", "scores"]
    for name, array in by_proto.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6)
    assert list(by_path) == ["scores"]
    np.testing.assert_array_equal(by_path["scores"], by_proto["scores"])
    np.testing.assert_array_equal(by_bytes["scores"], by_proto["scores"])


def test_onnx_runtime_computes_a_whole_model(server_url: str):
    model, image = classifier(), RNG.standard_normal((2, 3, 16, 16)).astype(np.float32)
    expected = by_runtime(model, {"image": image})

    with Client(server_url) as tp:
        found = tp.run_model(model, {"image": image}, backend="onnxruntime")
        with pytest.raises(InvalidParameter, match="computes models and graphs"):
            tp.tile(image, 2, backend="onnxruntime")

    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_published_networks(server_url: str, name: str):
    """Models of ONNX's own tests, whose weights are one number each."""
    content = (LIGHT / f"light_{name}.onnx").read_bytes()
    (output,) = load_model(content).outputs
    expected = onnx.TensorProto.FromString((LIGHT / f"light_{name}_output_0.pb").read_bytes())
    (given,) = load_model(content).inputs
    x = np.random.default_rng(0).random([int(size or 1) for size in given.sizes or ()]).astype(np.float32)

    with Client(server_url) as tp:
        found = tp.run_model(content, {given.name: x})[output.name]

    np.testing.assert_allclose(found, numpy_helper.to_array(expected), rtol=1e-3)


@pytest.mark.parametrize("path", sorted(EXPORTED.glob("*.onnx")), ids=lambda path: path.stem)
def test_models_of_exporters(server_url: str, path: Path):
    read, chance = load_model(path), np.random.default_rng(5)
    inputs: dict[str, NDArray[Any]] = {}
    for tensor in read.inputs:
        assert tensor.data_type is not None
        sizes = [size if isinstance(size, int) else 3 for size in tensor.sizes or ()]
        inputs[tensor.name] = chance.random(sizes).astype(tensor.data_type.dtype)
    expected = by_runtime(onnx.ModelProto.FromString(path.read_bytes()), inputs)

    with Client(server_url) as tp:
        found = tp.run_model(path, inputs)

    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(("count", "by_value"), [(8, ["few", "sizes"]), (600, ["few", "more", "sizes"])])
def test_constants_that_stand_in_the_document(count: int, by_value: list[str]):
    """Floats of more than 64 elements travel as bytes, unless a body had too many tensors; whole numbers do not."""
    constants: dict[str, Any] = {"few": np.ones(64, np.float32), "more": np.ones(65, np.float32)}
    constants |= {"most": np.ones(1025, np.float32), "sizes": np.zeros(65, np.int64)}
    nodes = [
        helper.make_node("Mul", ["x", "few"], ["a"]), helper.make_node("Gather", ["x", "sizes"], ["c"], axis=1),
        helper.make_node("Mul", ["c", "more"], ["b"]), helper.make_node("Mul", ["y", "most"], ["d"]),
    ]  # fmt: skip
    names = [f"s{at}" for at in range(count - len(constants))]
    constants |= {name: np.float32(at) for at, name in enumerate(names)}
    nodes.append(helper.make_node("Sum", ["b", *names], ["e"]))
    inputs, outputs = [value("x", FLOAT, 2, 64), value("y", FLOAT, 2, 1025)], [
        value("a", FLOAT, 2, 64), value("d", FLOAT, 2, 1025), value("e", FLOAT, 2, 65)
    ]  # fmt: skip
    model = model_of(nodes, inputs, outputs, constants).SerializeToString()

    call = model_call(model, {"x": np.ones((2, 64), np.float32), "y": np.ones((2, 1025), np.float32)}, None)

    assert sorted({*call.document["constants"]} - {*names}) == by_value
    assert {*call.arrays} == {"x", "y", "few", "more", "most", "sizes"} - {*by_value}


def test_the_command_line(server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENSORPOST_URL", server_url)
    path, image = tmp_path / "model.onnx", RNG.standard_normal((2, 3, 16, 16)).astype(np.float32)
    path.write_bytes(classifier().SerializeToString())
    np.save(tmp_path / "image.npy", image)

    def command(*words: object) -> Result:
        return CliRunner().invoke(app, ["model", *map(str, words)])

    shown = command("show", path)
    assert shown.exit_code == 0
    assert "float32 of shape [n, 3, 16, 16]" in shown.output
    assert "10 nodes, opset 17" in shown.output
    checked = command("check", path, "image=2,3,16,16")
    assert checked.exit_code == 0
    (line,) = [line.split() for line in checked.output.splitlines() if "Conv" in line]
    assert [*line[:3], *line[-2:]] == ["/conv/Conv", "Conv-11", "float32", "ONNX", "Runtime"]
    assert "give its sizes, as in image=1,3,224,224" in " ".join(command("check", path).output.split())
    ran = command("run", path, f"image={tmp_path / 'image.npy'}", "-o", f"scores={tmp_path / 'scores.npy'}")
    assert ran.exit_code == 0, ran.output
    expected = by_runtime(classifier_again(path), {"image": image})["scores"]
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), expected, rtol=1e-5, atol=1e-5)
    files = [f"image={tmp_path / 'image.npy'}", "-o", f"scores={tmp_path / 'theirs.npy'}"]
    assert command("run", path, *files, "--backend", "onnxruntime").exit_code == 0
    np.testing.assert_allclose(np.load(tmp_path / "theirs.npy"), expected, rtol=1e-5, atol=1e-5)
    drawn = command("show", path, "image=1,3,16,16", "-o", tmp_path / "model.svg")
    assert drawn.exit_code == 0
    assert (tmp_path / "model.svg").read_text().startswith("<svg")


def classifier_again(path: Path) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(path.read_bytes())


def test_functions_are_inlined(server_url: str):
    square = helper.make_function(
        "local", "ScaledSquare", ["a"], ["b"],
        [helper.make_node("Mul", ["a", "a"], ["aa"]), _referring("LeakyRelu", "aa", "b", "alpha")],
        [helper.make_opsetid("", 17)], ["alpha"],
    )  # fmt: skip
    nodes = [
        helper.make_node("ScaledSquare", ["x"], ["y"], domain="local", alpha=0.5),
        helper.make_node("Neg", ["y"], ["n"]),
        helper.make_node("ScaledSquare", ["n"], ["z"], domain="local", alpha=0.25),
    ]
    model = model_of(nodes, [value("x", FLOAT, 3)], [value("z", FLOAT, 3)], functions=[square], domains=["local"])
    x = np.array([1, -2, 3], np.float32)

    with Client(server_url) as tp:
        found = tp.run_model(model, {"x": x})["z"]

    np.testing.assert_array_equal(found, np.array([1, 16, 81], np.float32))


def test_tensors_of_functions_have_names_of_their_own(server_url: str):
    double = helper.make_function(
        "local", "Double", ["a"], ["b"],
        [helper.make_node("Add", ["a", "a"], ["aa"]), helper.make_node("Neg", ["aa"], ["b"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Abs", ["x"], ["Double_1/aa"]),
        helper.make_node("Double", ["x"], ["y"], domain="local"),
        helper.make_node("Sub", ["Double_1/aa", "y"], ["z"]),
    ]
    model = model_of(nodes, [value("x", FLOAT, 3)], [value("z", FLOAT, 3)], functions=[double], domains=["local"])

    with Client(server_url) as tp:
        found = tp.run_model(model, {"x": np.array([1, -2, 3], np.float32)})["z"]

    np.testing.assert_array_equal(found, np.array([3, -2, 9], np.float32))


def _referring(op_type: str, source: str, target: str, attribute: str) -> Any:
    node = helper.make_node(op_type, [source], [target])
    reference = node.attribute.add()
    reference.name = reference.ref_attr_name = attribute
    reference.type = onnx.AttributeProto.FLOAT
    return node


def test_an_initializer_is_the_default_of_an_input(server_url: str):
    model = model_of(
        [helper.make_node("Add", ["x", "bias"], ["y"])], [value("x", FLOAT, 2), value("bias", FLOAT, 2)],
        [value("y", FLOAT, 2)], {"bias": np.array([1, 2], np.float32)},
    )  # fmt: skip
    x = np.array([10, 20], np.float32)

    with Client(server_url) as tp:
        assert tp.run_model(model, {"x": x})["y"].tolist() == [11, 22]
        assert tp.run_model(model, {"x": x, "bias": x})["y"].tolist() == [20, 40]
        stored = tp.store(model, "with-default")
        assert stored(x)["y"].tolist() == [11, 22]
        assert stored({"x": x, "bias": x})["y"].tolist() == [20, 40]
        tp.delete_graph("with-default")


def test_an_initializer_that_is_no_input_is_a_constant(server_url: str):
    """As ONNX Runtime takes it. Source: ONNX IR, "Graphs"."""
    model = model_of(
        [helper.make_node("Add", ["x", "bias"], ["y"])], [value("x", FLOAT, 2)],
        [value("y", FLOAT, 2)], {"bias": np.array([1, 2], np.float32)},
    )  # fmt: skip
    x = np.array([10, 20], np.float32)

    with Client(server_url) as tp:
        with pytest.raises(InvalidParameter, match=r"no input 'bias', which is a constant of it .* its inputs: x"):
            tp.run_model(model, {"x": x, "bias": x})
        stored = tp.store(model, "with-constant")
        with pytest.raises(
            TensorMismatch, match=r"'bias' is a constant of the graph 'with-constant'.* its inputs: 'x'"
        ):
            stored({"x": x, "bias": x})
        with pytest.raises(TensorMismatch, match="takes the tensors 'x'; the body has 'z'"):
            stored({"z": x})
        tp.delete_graph("with-constant")


def test_of_many_inputs_with_defaults_a_message_names_three(server_url: str):
    names = [f"w{place}" for place in range(5)]
    model = model_of(
        [helper.make_node("Sum", ["x", *names], ["y"])], [value(name, FLOAT, 2) for name in ("x", *names)],
        [value("y", FLOAT, 2)], {name: np.zeros(2, np.float32) for name in names},
    )  # fmt: skip

    with Client(server_url) as tp:
        stored = tp.store(model, "with-defaults")
        with pytest.raises(TensorMismatch, match="'x' and may have 'w0', 'w1', 'w2' and 2 more; the body has 'z'"):
            stored({"z": np.zeros(2, np.float32)})
        tp.delete_graph("with-defaults")


def test_sizes_that_are_sent_as_tensors(server_url: str):
    """`shape` goes through a node before Reshape reads it."""
    nodes = [
        helper.make_node("Mul", ["shape", "two"], ["doubled"]),
        helper.make_node("Reshape", ["x", "doubled"], ["y"]),
        helper.make_node("Split", ["y"], ["first", "second"], axis=0),
    ]
    outputs = [value("second", FLOAT, None, None), value("x_again", FLOAT, 12)]
    nodes.append(helper.make_node("Identity", ["x"], ["x_again"]))
    model = model_of(
        nodes, [value("x", FLOAT, 12), value("shape", INT64, 2)], outputs, {"two": np.array([2, 1])}, opset=13
    )
    x = np.arange(12, dtype=np.float32)

    with Client(server_url) as tp:
        found = tp.run_model(model, {"x": x, "shape": np.array([2, 3])})

    assert found["second"].tolist() == [[6, 7, 8], [9, 10, 11]]
    assert found["x_again"].tolist() == x.tolist()


@pytest.mark.parametrize(
    "kind", [row.numpy_name for row in DATA_TYPES if row.kind not in "cO" and row.numpy_name != "float8_e8m0fnu"]
)
@pytest.mark.parametrize("raw", [True, False])
def test_initializers_of_every_type(kind: str, raw: bool):
    code, dtype = data_type(kind).onnx_code, data_type(kind).dtype
    numbers = np.array([0, 1, 1, 0, 1], np.float32).astype(dtype)
    packed = numpy_helper.from_array(numbers, "t")
    tensor = packed if raw else helper.make_tensor("t", code, [5], numbers.tolist())
    graph = helper.make_graph(
        [helper.make_node("Identity", ["t"], ["y"])], "g", [], [value("y", code, 5)], [tensor]
    )  # fmt: skip
    read = load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))

    assert read.initializers["t"].dtype.name == kind
    np.testing.assert_array_equal(read.initializers["t"].astype(np.float64), [0, 1, 1, 0, 1])


def relu(**changes: Any) -> onnx.ModelProto:
    return model_of(
        [helper.make_node("Relu", ["x"], ["y"], **changes)], [value("x", FLOAT, "n", 3)], [value("y", FLOAT, "n", 3)]
    )


def with_external_data() -> onnx.ModelProto:
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])], [value("x", FLOAT, 2)], [value("y", FLOAT, 2)],
        {"w": np.zeros(2, np.float32)},
    )  # fmt: skip
    (weight,) = model.graph.initializer
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"
    return model


def of_another_domain() -> onnx.ModelProto:
    model = relu()
    model.graph.node[0].domain = "com.example"
    model.graph.node[0].name = "odd"
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (with_external_data(), r"'w' lies in another file \(external data\); no file is read"),
        (of_another_domain(), r"the node 'odd' \(Relu\) is of the domain 'com.example'"),
        (b"", "the bytes are not an ONNX model: it has no graph"),
        (b"\x89PNG\r\n\x1a\n", "the bytes are not an ONNX model"),
        (relu().SerializeToString()[:-3], "the bytes are not an ONNX model"),
    ],
)
def test_what_is_not_computed_is_named(model: Any, words: str):
    with pytest.raises(InvalidDescriptor, match=words):
        model_call(model, {"x": np.zeros((2, 3), np.float32)}, None)


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ({}, None, r"the model's input 'x' is missing; it is float32 of shape \[n, 3\]"),
        ({"X": np.zeros((1, 3), np.float32)}, None, "no input 'X'; did you mean 'x'"),
        ({"x": np.zeros((1, 3))}, None, r"is float32 of shape \[n, 3\], and float64 of shape \[1, 3\] was sent"),
        ({"x": np.zeros((1, 4), np.float32)}, None, r"and float32 of shape \[1, 4\] was sent"),
        ({"x": np.zeros((1, 3), np.float32)}, ["z"], "no output 'z'.*; it has y"),
        ({"x": np.zeros((1, 3), np.float32)}, "y", "must be a list of names"),
    ],
)
def test_wrong_arguments(inputs: Any, outputs: Any, words: str):
    with pytest.raises(InvalidParameter, match=words):
        model_call(relu(), inputs, outputs)


def test_a_size_with_a_name_is_one_number():
    model = model_of(
        [helper.make_node("Add", ["a", "b"], ["y"])], [value("a", FLOAT, "n"), value("b", FLOAT, "n")],
        [value("y", FLOAT, "n")],
    )  # fmt: skip
    inputs = {"a": np.zeros(2, np.float32), "b": np.zeros(1, np.float32)}

    with pytest.raises(InvalidParameter, match="the size 'n' is 1 in the input 'b', and 2 in 'a'"):
        model_call(model, inputs, None)


def test_a_model_of_any_bytes_is_read_or_refused():
    content = classifier().SerializeToString()[:3000]
    chance = random.Random(7)
    image = np.zeros((1, 3, 16, 16), np.float32)
    for _ in range(400):
        changed = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            model_call(bytes(changed[: chance.randint(1, len(changed))]), {"image": image}, None)
        except TensorpostError:
            continue


def _changed(model: onnx.ModelProto, chance: random.Random) -> None:
    """Change something in a model that stays one."""
    node = chance.choice(model.graph.node)
    match chance.randrange(9):
        case 0:
            del node.input[chance.randrange(len(node.input) + 1) :]
        case 1:
            del node.output[chance.randrange(len(node.output) + 1) :]
        case 2:
            node.output.append(chance.choice(["", "more", node.output[0] if node.output else "x"]))
        case 3:
            others = ["Shape", "Size", "Identity", "Dropout", "Constant", "Range", "Slice", "Gather", "Cast", "Expand"]
            node.op_type = chance.choice([*others, "ConstantOfShape", "Concat", "Split", "Unsqueeze", "Nothing"])
        case 4:
            value = chance.choice([1, -5, 2.5, "text", [1, 2], [0.5], helper.make_tensor("t", FLOAT, [0], [])])
            name = chance.choice(["axis", "start", "to", "value", "perm", "kernel_shape", "value_int"])
            node.attribute.append(helper.make_attribute(name, value))
        case 5:
            node.input.append(chance.choice(["x", "image", "", "zero", "conv.weight", "nothing"]))
        case 6:
            tensor = chance.choice(model.graph.initializer)
            tensor.dims[:] = chance.choice([[], [0], [0, 1 << 62], [-1], [1 << 40]])
        case 7:
            model.opset_import[0].version = chance.choice([0, 1, 7, 13, 21, 1000])
        case _:
            model.graph.input[0].type.tensor_type.elem_type = chance.choice([0, 1, 7, 8, 16, 99])


def test_a_model_of_any_nodes_is_read_or_refused():
    content, chance = classifier().SerializeToString(), random.Random(11)
    image = np.zeros((1, 3, 16, 16), np.float32)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(600):
        model = onnx.ModelProto.FromString(content)
        for _ in range(chance.randint(1, 3)):
            _changed(model, chance)
        try:
            model_call(model.SerializeToString(), {"image": image}, None)
            outcomes["read"] += 1
        except TensorpostError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 20, outcomes


def test_functions_without_end():
    """A thousand calls of a thousand calls, none of which makes a node; and a function that calls itself."""
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    functions = [
        helper.make_function("local", f"f{at}", ["a"], ["b"],
                             [helper.make_node(f"f{at + 1}", ["a"], ["b"], domain="local")] * 1000, opset)
        for at in range(4)
    ]  # fmt: skip
    functions.append(helper.make_function("local", "f4", ["a"], ["b"], [], opset))
    graph = helper.make_graph(
        [helper.make_node("f0", ["x"], ["y"], domain="local")], "g", [value("x", FLOAT, 1)], [value("y", FLOAT, 1)]
    )
    many = helper.make_model(graph, opset_imports=opset, ir_version=8, functions=functions)
    itself = helper.make_function(
        "local", "f0", ["a"], ["b"], [helper.make_node("f0", ["a"], ["b"], domain="local")], opset
    )
    again = helper.make_model(graph, opset_imports=opset, ir_version=8, functions=[itself])

    with pytest.raises(InvalidDescriptor, match="more than 10,000 nodes once its functions are inlined"):
        load_model(many)
    with pytest.raises(InvalidDescriptor, match="functions call each other 16 deep at 'f0'"):
        load_model(again)


def test_a_model_opens_no_file(tmp_path: Path):
    """Of the files that reading a model with external data opens, none is the one that it names."""
    path = tmp_path / "model.onnx"
    path.write_bytes(with_external_data().SerializeToString())
    program = f"""
import sys, numpy as np
from tensorpost.calls.model_calls import model_call
content, x = open({str(path)!r}, "rb").read(), np.zeros(2, np.float32)
from tensorpost.problems import InvalidDescriptor
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
try:
    model_call(content, {{"x": x}}, None)
except InvalidDescriptor:
    print([name for name in opened if not name.endswith((".py", ".pyc"))])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert run.stdout.strip() == "[]"


def test_small_constants_decide_sizes_of_operators_of_the_package(server_url: str) -> None:
    """The length of a window, as a constant of the model and as an input; and a crop."""
    nodes = [
        helper.make_node("HannWindow", ["length"], ["window"]),
        helper.make_node("CenterCropPad", ["window", "kept"], ["cropped"]),
        helper.make_node("Neg", ["cropped"], ["y"]),
    ]
    lengths = {"length": np.array(10, np.int64), "kept": np.array([4], np.int64)}
    outputs = [value("y", FLOAT, None)]
    with_inputs = model_of(nodes, [value("length", INT64), value("kept", INT64, 1)], outputs, opset=18)
    expected = -(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(3, 7) / 10))

    with Client(server_url) as tp:
        (sent,) = tp.run_model(with_inputs, lengths).values()
    np.testing.assert_allclose(sent, expected, rtol=1e-5)


def test_a_shape_that_is_not_inferred_is_named() -> None:
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores"], ["selected"], name="nms")
    inputs = [value("boxes", FLOAT, 1, 5), value("scores", FLOAT, 1, 1, 5)]
    model = model_of([node], inputs, [value("selected", INT64, None, 3)])
    sent = {"boxes": np.zeros((1, 5), np.float32), "scores": np.zeros((1, 1, 5), np.float32)}

    with pytest.raises(InvalidDescriptor, match=r"the node 'nms' \(NonMaxSuppression\): .*boxes must be a tensor of 3"):
        model_call(model, sent, None)
