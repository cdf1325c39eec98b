"""The messages of the Open Inference Protocol's gRPC service, with Triton's, made when they are first needed.

Names and numbers of the fields are the protocol's (`grpc_predict_v2.proto`, Triton's `grpc_service.proto` and
`model_config.proto`). They stand here as a table, and not as code that protoc generated, because generated code works
with one or two major versions of protobuf only. They are in a pool of their own, so that a client's are not disturbed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

PACKAGE = "inference"

# message -> fields: name, number and type; * repeated, % a map from text to it, | one of the message's choice
_MESSAGES = {
    "Empty": "",
    "Live": "live 1 bool",
    "Ready": "ready 1 bool",
    "Model": "name 1 string, version 2 string",
    "ServerMetadata": "name 1 string, version 2 string, extensions 3 string*",
    "TensorMetadata": "name 1 string, datatype 2 string, shape 3 int64*",
    "ModelMetadata": "name 1 string, versions 2 string*, platform 3 string, inputs 4 TensorMetadata*, "
    "outputs 5 TensorMetadata*",
    "InferParameter": "bool_param 1 bool|, int64_param 2 int64|, string_param 3 string|, double_param 4 double|, "
    "uint64_param 5 uint64|",
    "InferTensorContents": "bool_contents 1 bool*, int_contents 2 int32*, int64_contents 3 int64*, "
    "uint_contents 4 uint32*, uint64_contents 5 uint64*, fp32_contents 6 float*, fp64_contents 7 double*, "
    "bytes_contents 8 bytes*",
    "InferTensor": "name 1 string, datatype 2 string, shape 3 int64*, parameters 4 InferParameter%, "
    "contents 5 InferTensorContents",
    "RequestedOutput": "name 1 string, parameters 2 InferParameter%",
    "ModelInferRequest": "model_name 1 string, model_version 2 string, id 3 string, parameters 4 InferParameter%, "
    "inputs 5 InferTensor*, outputs 6 RequestedOutput*, raw_input_contents 7 bytes*",
    "ModelInferResponse": "model_name 1 string, model_version 2 string, id 3 string, parameters 4 InferParameter%, "
    "outputs 5 InferTensor*, raw_output_contents 6 bytes*",
    "ModelStreamInferResponse": "error_message 1 string, infer_response 2 ModelInferResponse",
    "ModelInput": "name 1 string, data_type 2 int32, dims 4 int64*",
    "ModelOutput": "name 1 string, data_type 2 int32, dims 3 int64*",
    "ModelParameter": "string_value 1 string",
    "LatestVersions": "num_versions 1 uint32",
    "VersionPolicy": "latest 1 LatestVersions",
    "Config": "name 1 string, platform 2 string, version_policy 3 VersionPolicy, max_batch_size 4 int32, "
    "input 5 ModelInput*, output 6 ModelOutput*, parameters 14 ModelParameter%, backend 17 string",
    "ModelConfig": "config 1 Config",
    "Duration": "count 1 uint64, ns 2 uint64",
    "InferStatistics": "success 1 Duration, fail 2 Duration, queue 3 Duration, compute_input 4 Duration, "
    "compute_infer 5 Duration, compute_output 6 Duration, cache_hit 7 Duration, cache_miss 8 Duration",
    "Statistics": "name 1 string, version 2 string, last_inference 3 uint64, inference_count 4 uint64, "
    "execution_count 5 uint64, inference_stats 6 InferStatistics",
    "ModelStatistics": "model_stats 1 Statistics*",
    "ModelIndex": "name 1 string, version 2 string, state 3 string, reason 4 string",
    "RepositoryIndex": "models 1 ModelIndex*",
    "RepositoryParameter": "bool_param 1 bool|, int64_param 2 int64|, string_param 3 string|, bytes_param 4 bytes|",
    "RepositoryModel": "repository_name 1 string, model_name 2 string, parameters 3 RepositoryParameter%",
    "Region": "name 1 string, key 2 string, offset 3 uint64, byte_size 4 uint64",
    "Regions": "regions 1 Region%",
    "CudaRegionStatus": "name 1 string, device_id 2 uint64, byte_size 3 uint64",
    "CudaRegions": "regions 1 CudaRegionStatus%",
    "CudaRegion": "name 1 string, raw_handle 2 bytes, device_id 3 int64, byte_size 4 uint64",
}

METHODS = {
    "ServerLive": ("Empty", "Live"), "ServerReady": ("Empty", "Ready"), "ModelReady": ("Model", "Ready"),
    "ServerMetadata": ("Empty", "ServerMetadata"), "ModelMetadata": ("Model", "ModelMetadata"),
    "ModelInfer": ("ModelInferRequest", "ModelInferResponse"),
    "ModelStreamInfer": ("ModelInferRequest", "ModelStreamInferResponse"),
    "ModelConfig": ("Model", "ModelConfig"), "ModelStatistics": ("Model", "ModelStatistics"),
    "RepositoryIndex": ("Empty", "RepositoryIndex"), "RepositoryModelLoad": ("RepositoryModel", "Empty"),
    "RepositoryModelUnload": ("RepositoryModel", "Empty"),
    "SystemSharedMemoryStatus": ("Model", "Regions"), "SystemSharedMemoryRegister": ("Region", "Empty"),
    "SystemSharedMemoryUnregister": ("Model", "Empty"), "CudaSharedMemoryStatus": ("Model", "CudaRegions"),
    "CudaSharedMemoryRegister": ("CudaRegion", "Empty"), "CudaSharedMemoryUnregister": ("Model", "Empty"),
    "TraceSetting": ("Empty", "Empty"), "LogSettings": ("Empty", "Empty"),
}  # fmt: skip
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
