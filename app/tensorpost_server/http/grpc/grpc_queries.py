"""Calls of gRPC that compute nothing: the request of `/v2` that each is, and what its answer is as a message."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

_DATA_TYPES = (
    "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
    "STRING", "BF16",
)  # fmt: skip
"""Triton's DataType by its number."""


class Query(NamedTuple):
    """A request of `/v2`.

    Attributes:
        path: its path, or what makes it from the message.
        document: makes its body from the message; None if it has none.
        fields: makes the fields of the response from the answer's JSON.
        flag: the response's only field if the question is whether the answer is 200; else empty.
        has_file: whether the message may hold a file, so that it may be as long as one with tensors.
    """

    method: Literal["GET", "POST"]
    path: str | Callable[[Any], str]
    document: Callable[[Any], dict[str, Any]] | None = None
    fields: Callable[[Any], dict[str, Any]] = dict
    flag: str = ""
    has_file: bool = False

    def body(self, message: Any) -> bytes:
        """The body of the request, JSON."""
        assert self.document is not None
        return json.dumps(self.document(message)).encode()


def model_path(name: str, version: str) -> str:
    """The path of a model, or of a version of it."""
    return f"/v2/models/{quote(name, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _path_at_model(suffix: str, model: Any) -> str:
    return model_path(model.name, model.version) + suffix


def _statistics_path(model: Any) -> str:
    return _path_at_model("/stats", model) if model.name else "/v2/models/stats"


def _repository_path(suffix: str, model: Any) -> str:
    return f"/v2/repository/models/{quote(model.model_name)}/{suffix}"


def _region_path(kind: Literal["system", "cuda"], suffix: str, region: Any) -> str:
    return f"/v2/{kind}sharedmemory/" + (f"region/{quote(region.name, safe='')}/" if region.name else "") + suffix


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def _load_parameters(model: Any) -> dict[str, Any]:
    """Bytes are base64, as they are over HTTP."""
    found: dict[str, Any] = {}
    for name, value in model.parameters.items():
        kind = value.WhichOneof("choice") or "string_param"
        given = getattr(value, kind)
        found[name] = base64.b64encode(given).decode() if kind == "bytes_param" else given
    return {"parameters": found}


def _system_region(region: Any) -> dict[str, Any]:
    return {"key": region.key, "offset": region.offset, "byte_size": region.byte_size}


def _cuda_region(region: Any) -> dict[str, Any]:
    handle = {"b64": base64.b64encode(region.raw_handle).decode()}
    return {"raw_handle": handle, "device_id": region.device_id, "byte_size": region.byte_size}


def _config(config: dict[str, Any]) -> dict[str, Any]:
    for tensor in (*config["input"], *config["output"]):
        tensor["data_type"] = _DATA_TYPES.index(tensor["data_type"].removeprefix("TYPE_"))
    return {"config": config}


def _statistics(document: dict[str, Any]) -> dict[str, Any]:
    for entry in document["model_stats"]:
        for name in ("response_stats", "batch_stats", "memory_usage"):
            del entry[name]
    return document


def _models(index: list[Any]) -> dict[str, Any]:
    return {"models": index}


def _regions(status: list[dict[str, Any]]) -> dict[str, Any]:
    return {"regions": {entry["name"]: entry for entry in status}}


QUERIES: Mapping[str, Query] = {
    "ServerLive": Query("GET", "/v2/health/live", flag="live"),
    "ServerReady": Query("GET", "/v2/health/ready", flag="ready"),
    "ModelReady": Query("GET", partial(_path_at_model, "/ready"), flag="ready"),
    "ServerMetadata": Query("GET", "/v2"),
    "ModelMetadata": Query("GET", partial(_path_at_model, "")),
    "ModelConfig": Query("GET", partial(_path_at_model, "/config"), fields=_config),
    "ModelStatistics": Query("GET", _statistics_path, fields=_statistics),
    "RepositoryIndex": Query("POST", "/v2/repository/index", fields=_models),
    "RepositoryModelLoad": Query("POST", partial(_repository_path, "load"), _load_parameters, has_file=True),
    "RepositoryModelUnload": Query("POST", partial(_repository_path, "unload"), _nothing),
    "SystemSharedMemoryStatus": Query("GET", partial(_region_path, "system", "status"), fields=_regions),
    "SystemSharedMemoryRegister": Query("POST", partial(_region_path, "system", "register"), _system_region),
    "SystemSharedMemoryUnregister": Query("POST", partial(_region_path, "system", "unregister"), _nothing),
    "CudaSharedMemoryStatus": Query("GET", partial(_region_path, "cuda", "status"), fields=_regions),
    "CudaSharedMemoryRegister": Query("POST", partial(_region_path, "cuda", "register"), _cuda_region),
    "CudaSharedMemoryUnregister": Query("POST", partial(_region_path, "cuda", "unregister"), _nothing),
    "TraceSetting": Query("GET", "/v2/trace/setting"),
    "LogSettings": Query("GET", "/v2/logging"),
}
"""The query of each method but the inferences."""
