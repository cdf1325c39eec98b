"""The OpenAPI document: a path for each operator, with its query parameters, its JSON body and an example that works.

FastAPI's document has one path for all operators; here it is replaced by theirs. Names are chosen for generators of
clients: `run_tile`, `run_onnx_Tile`, `TileCall`. `openapi_components.json` has what all paths share; examples are
those of the operators' pages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorpost.descriptors import OPERATORS, OperatorDesc
from tensorpost.descriptors.catalogue import pascal_case
from tensorpost.descriptors.field_texts import field_texts
from tensorpost.onnx import NEWEST_OPSET, ONNX_OPERATORS, OnnxSchema
from tensorpost.reference.operator_reference import example_of
from tensorpost.values.datatypes import DATA_TYPES, TensorDataType

from ...backends import BACKENDS
from ..media_types import MediaType

_COMPONENTS = Path(__file__).with_name("openapi_components.json")

_BINARY = {"type": "string", "format": "binary"}
_OPERATORS_PATH, _ONNX_PATH = "/v1/operators/{operator}", "/v1/onnx/{op_type}"

_RAW_FIELDS = ("TensorShape", "TensorDtype")
"""Components of header fields that every call may have."""


def expanded(document: Mapping[str, Any]) -> dict[str, Any]:
    """FastAPI's document with a path for each operator."""
    paths: dict[str, Any] = {path: dict(item) for path, item in document["paths"].items()}
    del paths[_OPERATORS_PATH]["post"], paths[_ONNX_PATH]
    shared_components = _completed_components()
    schemas = shared_components["schemas"]
    for cls in OPERATORS:
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
        paths[path] = _operation(
            operation_id,
            _line(cls.operator_type, cls.summary),
            cls.summary,
            "operators",
            name,
            parameters,
            shared,
            path,
        )
    for schema in _newest_onnx():
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
            _parameter(each.name, f"ONNX's attribute, {each.type}", each.type.endswith("S"), {})
            for each in schema.attributes
            if each.type in ("INT", "INTS", "FLOAT", "FLOATS", "STRING")
        ]
        parameters += [
            _parameter(each.name, "small input; travels as a tensor too", True, {"type": "number"})
            for each in schema.value_inputs
        ]
        taken = {parameter["name"] for parameter in parameters}
        shared = tuple(
            each
            for each in ("Backend", "Device", "Opset")
            if shared_components["parameters"][each]["name"] not in taken
        )
        paths[path] = _operation(
            f"run_onnx_{schema.op_type}",
            _line(f"ONNX {schema.op_type}", schema.summary),
            schema.summary or f"As ONNX says of {schema.op_type}.",
            "onnx",
            name,
            parameters,
            shared,
            path,
        )
    components: dict[str, Any] = {
        **document.get("components", {}),
        **shared_components,
        "schemas": {**document.get("components", {}).get("schemas", {}), **schemas},
    }
    return {**document, "paths": paths, "components": components}


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


def _line(name: str, summary: str) -> str:
    """The name and what the operator does, without Markdown and its second half, as a line of a list."""
    return f"{name}: {summary.partition(';')[0].replace('`', '').rstrip('.')}" if summary else name


def _newest_onnx() -> list[OnnxSchema]:
    newest = {schema.op_type: schema for schema in sorted(ONNX_OPERATORS, key=lambda each: each.since_version)}
    return [newest[name] for name in sorted(newest)]


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
            tensor = {**_ref("schemas", "TensorDesc"), "description": text}
            properties[field.name] = {"type": "array", "items": tensor} if field.is_array else tensor
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
            "parameters": [*parameters, *(_ref("parameters", each) for each in (*shared, *_RAW_FIELDS))],
            "requestBody": {"required": True, "content": content},
            "responses": {"200": _ref("responses", "Result"), "default": _ref("responses", "Problem")},
        }
    }
