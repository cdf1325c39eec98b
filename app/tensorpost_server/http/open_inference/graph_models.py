"""Stored graphs as models of the Open Inference Protocol: their own inputs and outputs, -1 for sizes that are names."""

from __future__ import annotations

from tensorpost.values.datatypes import data_type

from ..wires.graph_dialect import GRAPH_NAME, GRAPHS_PATH
from ..wires.graph_sources import DeclaredTensor
from ..wires.graph_store import StoreEntry
from ..wires.stored_dialect import StoredDialect
from .models import Model, TensorInfo


def graph_model(entry: StoreEntry, most_nodes: int) -> Model:
    """The model of a stored graph.

    Args:
        entry: the stored graph.
        most_nodes: nodes that a graph may have.
    """
    model = entry.model
    if not isinstance(model, Model):
        inputs, outputs = (
            [_tensor_info(each) for each in tensors] for tensors in (entry.source.inputs, entry.source.outputs)
        )
        model = Model(
            entry.name, GRAPHS_PATH, GRAPH_NAME, tuple(inputs), tuple(outputs), {}, {}, StoredDialect(entry, most_nodes)
        )
        entry.model = model
    return model


def _tensor_info(tensor: DeclaredTensor) -> TensorInfo:
    """The tensor in the metadata; where nothing is known, clients see float32 and one free size."""
    sizes = (None,) if tensor.sizes is None else tensor.sizes
    shape = tuple([size if isinstance(size, int) else -1 for size in sizes])
    return TensorInfo(tensor.name, tensor.data_type or data_type("float32"), shape)
