"""The OpenAPI document: a path for each operator, with its query parameters, its JSON body and an example that works.

FastAPI's document has one path for all operators; here it is replaced by theirs. Names are chosen for generators of
clients: `run_tile`, `run_onnx_Tile`, `TileCall`. `openapi_components.json` has what all paths share; examples are
those of the operators' pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tensorpost.descriptors import OPERATORS, OperatorDesc
from tensorpost.descriptors.catalogue import pascal_case
from tensorpost.descriptors.families import find_operator
from tensorpost.descriptors.field_texts import field_texts
from tensorpost.onnx import NEWEST_OPSET, OnnxSchema
from tensorpost.onnx.operator_schema import OnnxAttribute
from tensorpost.reference.onnx_page import onnx_names, onnx_reference
from tensorpost.reference.operator_reference import example_of
from tensorpost.values.datatypes import DATA_TYPES, TensorDataType

from ...backends import BACKENDS
from ..media_types import MediaType

_COMPONENTS = Path(__file__).with_name("openapi_components.json")

_BINARY = {"type": "string", "format": "binary"}
_OPERATORS_PATH, _ONNX_PATH = "/v1/operators/{operator}", "/v1/onnx/{op_type}"
_GENERAL = frozenset({_OPERATORS_PATH, _ONNX_PATH})
"""FastAPI's paths for all operators; those of each operator stand in their place."""
_REFERENCE = re.compile(r'"\$ref": "#/components/(\w+)/(\w+)"')

_RAW_FIELDS = ("TensorShape", "TensorDtype")
_ROWS = ("Rows", "IfRange")
"""Components of header fields that every call may have."""


def expanded(document: Mapping[str, Any]) -> dict[str, Any]:
    """FastAPI's document with a path for each operator.

    Args:
        document: what FastAPI makes of the routes.
    """
    components = _completed_components()
    paths = {path: dict(item) for path, item in document["paths"].items() if path not in _GENERAL}
    paths |= {path: {"get": document["paths"][path]["get"]} for path in (_OPERATORS_PATH, _ONNX_PATH)}
    for cls in OPERATORS:
        paths |= _directml_path(cls, components)
    for schema in _newest_onnx().values():
        paths |= _onnx_path(schema, components)
    return {**document, "paths": paths, "components": _with_components_of(document, components)}


def excerpt(document: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    """The document of one path: that path, and the components that it refers to; None if there is no such path.

    Args:
        document: what FastAPI makes of the routes.
        path: a path of the expanded document, as in `/v1/operators/tile`.
    """
    components = _completed_components()
    begin, _, name = path.rpartition("/")
    found: Mapping[str, Any] = {}
    if begin == "/v1/operators" and path not in document["paths"] and name == name.lower():
        cls = find_operator(name.upper())
        found = {} if cls is None else _directml_path(cls, components)
    elif begin == "/v1/onnx" and path not in document["paths"] and name in _newest_onnx():
        found = _onnx_path(_newest_onnx()[name], components)
    elif path in _GENERAL:
        found = {path: {"get": document["paths"][path]["get"]}}
    elif path in document["paths"]:
        found = {path: document["paths"][path]}
    if not found:
        return None
    every = _with_components_of(document, components)
    return {**document, "paths": dict(found), "components": _referred(found, every)}


def _with_components_of(document: Mapping[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    own: Mapping[str, Any] = document.get("components", {})
    return {**own, **components, "schemas": {**own.get("schemas", {}), **components["schemas"]}}


def _referred(found: Mapping[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    """The components that a part of the document refers to, and those that these refer to."""
    kept: dict[str, dict[str, Any]] = {}
    todo = [json.dumps(found)]
    while todo:
        for kind, name in _REFERENCE.findall(todo.pop()):
            if name not in kept.setdefault(kind, {}):
                kept[kind][name] = components[kind][name]
                todo.append(json.dumps(components[kind][name]))
    return kept


def _directml_path(cls: type[OperatorDesc], components: dict[str, Any]) -> dict[str, Any]:
    """The path of one of DirectML's operators; its schemas are added to the components."""
    schemas = components["schemas"]
    name = _component_name(cls.operator_type)
    schemas[f"{name}Desc"], parameters = _descriptor(cls, schemas)
    schemas[f"{name}Document"] = {
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {"type": "string", "const": cls.operator_type},
            "desc": _ref("schemas", f"{name}Desc"),
        },
    }
    schemas[f"{name}Call"] = _call(f"{name}Document")
    path = f"/v1/operators/{cls.operator_type.lower()}"
    shared = ("Backend", "Device", "FeatureLevel", "OutputSizes", "OutputDataType")
    operation_id = f"run_{cls.operator_type.lower()}"
    summary = operator_line(cls.operator_type, cls.summary)
    return {path: _operation(operation_id, summary, cls.summary, "operators", name, parameters, shared, path)}


def _onnx_path(schema: OnnxSchema, components: dict[str, Any]) -> dict[str, Any]:
    """The path of one of ONNX's operators; its schemas are added to the components."""
    schemas = components["schemas"]
    name = f"Onnx{schema.op_type}"
    schemas[f"{name}Node"] = {
        "type": "object",
        "required": ["op_type"],
        "properties": {
            "op_type": {"type": "string", "const": schema.op_type},
            "opset": {"type": "integer"},
            "attributes": {"type": "object"},
            "inputs": {"type": "object"},
            "outputs": {"type": "integer"},
        },
    }
    schemas[f"{name}Call"] = _call(f"{name}Node")
    path = f"/v1/onnx/{schema.op_type}"
    parameters = [
        _parameter(each.name, _attribute_text(each), each.type.endswith("S"), {})
        for each in schema.attributes
        if each.type in ("INT", "INTS", "FLOAT", "FLOATS", "STRING")
    ]
    parameters += [
        _parameter(each.name, "small input; travels as a tensor too", True, {"type": "number"})
        for each in schema.value_inputs
    ]
    taken = {parameter["name"] for parameter in parameters}
    shared = tuple(
        each for each in ("Backend", "Device", "Opset") if components["parameters"][each]["name"] not in taken
    )
    text = schema.summary or f"As ONNX says of {schema.op_type}."
    summary = operator_line(f"ONNX {schema.op_type}", schema.summary)
    operation_id = f"run_onnx_{schema.op_type}"
    return {path: _operation(operation_id, summary, text, "onnx", name, parameters, shared, path)}


def _attribute_text(attribute: OnnxAttribute) -> str:
    """The type, default and values of an attribute of ONNX."""
    text = f"ONNX's attribute, {attribute.type}"
    if attribute.choices:
        text += f": {', '.join(map(str, attribute.choices))}"
    return f"{text}; default {attribute.default}" if attribute.default is not None else text


def _completed_components() -> dict[str, Any]:
    """What stands in `openapi_components.json`, completed by the types, backends and media types that there are."""
    components = json.loads(_COMPONENTS.read_text(encoding="utf-8"))
    schemas, parameters = components["schemas"], components["parameters"]
    schemas["JsonTensor"]["properties"]["dtype"]["enum"] = [row.safetensors for row in DATA_TYPES if row.safetensors]
    schemas["TensorDesc"]["properties"]["DataType"]["enum"] = [each.name for each in TensorDataType if each]
    parameters["Backend"]["schema"]["enum"] = ["auto", *BACKENDS]
    parameters["Opset"]["description"] += f"; default {NEWEST_OPSET}"
    result = {MediaType.JSON.value: {"schema": _ref("schemas", "JsonResult")}, **_binary()}
    components["responses"]["Result"]["content"] = result
    return components


def _binary() -> dict[str, Any]:
    """Bodies of every media type but JSON."""
    return {each.value: {"schema": _BINARY} for each in MediaType if each is not MediaType.JSON}


def operator_line(name: str, summary: str) -> str:
    """The name and what the operator does, without Markdown and its second half, as a line of a list.

    Args:
        name: the operator's name.
        summary: its whole summary; it may be empty.
    """
    return f"{name}: {summary.partition(';')[0].replace('`', '').rstrip('.')}" if summary else name


@cache
def _newest_onnx() -> Mapping[str, OnnxSchema]:
    """The newest version of each operator of ONNX, in alphabetical order."""
    return {name: onnx_reference(name).newest for name in onnx_names()}


def _component_name(operator_type: str) -> str:
    return pascal_case(operator_type.lower())


def _ref(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _parameter(name: str, text: str, is_array: bool, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A query parameter, without an example: pages fill those in, and the query must not repeat a document."""
    plain = {**schema} if "$ref" in schema else {"type": "string", **schema}
    parameter: dict[str, Any] = {"name": name, "in": "query", "required": False, "description": text, "schema": plain}
    if is_array:
        parameter |= {"schema": {"type": "array", "items": plain}, "style": "form", "explode": False}
    return parameter


def _descriptor(cls: type[OperatorDesc], schemas: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The schema of a descriptor whose fields may be left out where they follow, and its query parameters.

    Args:
        cls: the operator's class.
        schemas: the enums that it uses are added here.
    """
    full = cls.model_json_schema(by_alias=True)
    properties: dict[str, Any] = {}
    parameters: list[dict[str, Any]] = []
    texts = field_texts(cls)
    for field in cls.facts.fields:
        text = texts[field.attribute_name]
        if field.kind != "attribute":
            tensor = _ref("schemas", "TensorDesc")
            described = {"type": "array", "items": tensor} if field.is_array else tensor
            properties[field.name] = {**described, "description": text}
            continue
        schema = _simple(full["properties"].get(field.name, {}), schemas)
        properties[field.name] = {**schema, "description": text}
        plain = schema.get("items", schema)
        is_enum = "Enum" in str(plain.get("$ref", ""))
        is_structure = not is_enum and plain.get("type") in (None, "object")
        sent = {} if is_structure else plain if is_enum else {"type": plain["type"]}
        text = f"{field.name}, a structure as JSON: {text}" if is_structure else f"{field.name}: {text}"
        parameters.append(_parameter(field.attribute_name, text, field.is_array and not is_structure, sent))
    return {"type": "object", "properties": properties, "additionalProperties": False}, parameters


def _simple(schema: Mapping[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """A schema of one type, which every generator knows: no null, no titles, of an enum the short names only."""
    if "anyOf" in schema:
        (first, *_) = [each for each in schema["anyOf"] if each.get("type") != "null"]
        return _simple(first, schemas)
    if "$ref" in schema:
        return _ref("schemas", str(schema["$ref"]).rpartition("/")[2])
    if "enum" in schema:
        names = [each for each in schema["enum"] if isinstance(each, str) and not each.startswith("DML_")]
        full = [each for each in schema["enum"] if isinstance(each, str) and each.endswith(names[0])][1]
        component = _component_name(full.removeprefix("DML_").removesuffix(f"_{names[0]}")) + "Enum"
        schemas[component] = {"type": "string", "enum": names}
        return _ref("schemas", component)
    simple = {key: schema[key] for key in ("type", "minimum", "maximum") if key in schema}
    if "items" in schema:
        simple["items"] = _simple(schema["items"], schemas)
    return simple or {"type": "object"}


def _call(document: str) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["tensors"],
        "properties": {
            "op": _ref("schemas", document),
            "tensors": {"type": "object", "additionalProperties": _ref("schemas", "JsonTensor")},
            "id": {"type": "string"},
        },
    }


def _operation(
    operation_id: str, summary: str, text: str, tag: str, name: str, parameters: list[dict[str, Any]],
    shared: tuple[str, ...], path: str,
) -> dict[str, Any]:  # fmt: skip
    json_content: dict[str, Any] = {"schema": _ref("schemas", f"{name}Call")}
    example = example_of(path)
    if example is not None:
        json_content["example"] = example.call
        content = {MediaType.JSON.value: json_content, **_binary()}  # pages show the first, filled with its example
    else:
        content = {**_binary(), MediaType.JSON.value: json_content}
    return {
        "post": {
            "operationId": operation_id,
            "summary": summary,
            "description": text,
            "tags": [tag],
            "parameters": [*parameters, *(_ref("parameters", each) for each in (*shared, *_ROWS, *_RAW_FIELDS))],
            "requestBody": {"required": True, "content": content},
            "responses": {"200": _ref("responses", "Result"), "default": _ref("responses", "Problem")},
        }
    }
