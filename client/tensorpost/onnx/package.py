"""What is read from the `onnx` package, which is needed for operators that tensorpost has no rule for."""

from __future__ import annotations

import importlib
from typing import Any

from ..datatypes import DATA_TYPES

__all__ = ["schema_row", "tensor_of_proto"]

_ATTRIBUTE_FIELDS = {"FLOAT": "f", "INT": "i", "STRING": "s", "FLOATS": "floats", "INTS": "ints", "STRINGS": "strings"}
_FLAGS = {"Single": "", "Optional": "?", "Variadic": "*"}


def schema_row(schema: Any) -> dict[str, Any]:
    """A version of an operator as `operators.json` has it, from an `onnx.defs.OpSchema`.

    Types that no tensor here has are left out: sequences, and those of fewer than 8 bits.
    """
    types = {entry.type_param_str: _types(entry.allowed_type_strs) for entry in schema.type_constraints}
    attributes: dict[str, list[Any]] = {}
    for name in sorted(schema.attributes):
        attribute = schema.attributes[name]
        kind, default = attribute.type.name, attribute.default_value
        value = None
        if default.name and kind in _ATTRIBUTE_FIELDS:
            value = getattr(default, _ATTRIBUTE_FIELDS[kind])
            value = value.decode() if kind == "STRING" else list(value) if kind.endswith("S") else value
        attributes[name] = [kind, "required"] if attribute.required else [kind] if value is None else [kind, value]
    return {
        "inputs": [_parameter(entry, types) for entry in schema.inputs],
        "outputs": [_parameter(entry, types) for entry in schema.outputs],
        "types": {name: " ".join(found) for name, found in types.items()},
        "attributes": attributes,
    }


def _parameter(entry: Any, types: dict[str, list[str]]) -> list[Any]:
    kind = entry.type_str
    if kind not in types:
        kind = " ".join(_types([kind]))
    return [entry.name.rstrip("."), kind, _FLAGS[entry.option.name]][: 2 if entry.option.name == "Single" else 3]


def _types(names: Any) -> list[str]:
    return [row.onnx for row in DATA_TYPES if f"tensor({row.onnx})" in names]


def tensor_of_proto(tensor: Any) -> Any:
    """The array of an `onnx.TensorProto`."""
    return importlib.import_module("onnx.numpy_helper").to_array(tensor)
