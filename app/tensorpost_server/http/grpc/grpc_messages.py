"""The messages of the Open Inference Protocol's gRPC service, with Triton's, made when they are first needed.

Names and numbers of the fields are the protocol's (`grpc_predict_v2.proto`, Triton's `grpc_service.proto` and
`model_config.proto`). They stand in `grpc_messages.json` as a table, and not as code that protoc generated, because
generated code works with one or two major versions of protobuf only. They are in a pool of their own, so that a
client's are not disturbed.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = "inference"

_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
_MESSAGES: Mapping[str, str] = _TABLES["messages"]
"""Each message's fields: name, number and type; * repeated, % a map from text to it, | one of the message's choice."""
METHODS: Mapping[str, Sequence[str]] = _TABLES["methods"]
"""Messages of each method's request and response; several that have the same fields are one here."""


@cache
def grpc_messages() -> Mapping[str, Any]:
    """The message classes by name.

    Raises:
        ModuleNotFoundError: protobuf is not installed.
    """
    pb2: Any = importlib.import_module("google.protobuf.descriptor_pb2")
    pool: Any = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    factory: Any = importlib.import_module("google.protobuf.message_factory")
    file = pb2.FileDescriptorProto(name="open_inference.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in filter(None, fields.split(", ")):
            _add_field(pb2.FieldDescriptorProto, message, *text.split())
    pool.Add(file)
    return {name: factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES}


def _add_field(kinds: Any, message: Any, name: str, number: str, kind: str) -> None:
    base, flag = kind.rstrip("*%|"), kind[-1]
    label = kinds.LABEL_REPEATED if flag in "*%" else kinds.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label)
    if flag == "%":
        entry = message.nested_type.add(name="".join(map(str.capitalize, name.split("_"))) + "Entry")
        entry.options.map_entry = True
        _add_field(kinds, entry, "key", "1", "string")
        _add_field(kinds, entry, "value", "2", base)
        field.type, field.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{message.name}.{entry.name}"
    elif base in _MESSAGES:
        field.type, field.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{base}"
    else:
        field.type = getattr(kinds, f"TYPE_{base.upper()}")
    if flag == "|":
        if not message.oneof_decl:
            message.oneof_decl.add(name="choice")
        field.oneof_index = 0
