"""Fields of DirectML's operators that the document of a graph leaves out, and that were filled in.

Source: a C program has to set every field of an operator's struct (`DirectML.h`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..descriptors.documents import fields_filled_in, left_out, operator_members, parse_operator
from ..descriptors.operator_desc import OperatorDesc
from ..onnx.report import Path
from ..values.graph import Graph
from ..values.problems import Violation
from .dml_graph import is_dml_graph


@dataclass(frozen=True, slots=True)
class OmittedFields:
    """What a node leaves out.

    Attributes:
        node: the node's name; `Nodes[3]` in DirectML's structs, where names are not unique.
        operator_type: its operator's short name, as in `TILE`.
        path: where its operator is in the document.
        desc_member: the operator's member that has the fields.
        fields: their names, in the order of the C struct.
    """

    node: str
    operator_type: str
    path: Path
    desc_member: str
    fields: Sequence[str]

    @property
    def names(self) -> list[str]:
        """The fields as messages name them: `node.Field`."""
        return [f"{self.node}.{field}" for field in self.fields]

    @property
    def violations(self) -> list[Violation]:
        """A violation for each, where nothing may be filled in."""
        found = left_out(self.desc_member, self.fields, self.operator_type)
        return [violation.prefixed(*self.path) for violation in found]


def omitted_fields(document: Mapping[str, Any], graph: Graph) -> list[OmittedFields]:
    """What each node of DirectML leaves out, in the order of the document; nodes that leave out nothing are not listed.

    Tensors that a node names in its `inputs` are described by these, and count as given.

    Args:
        document: the document of a graph, in either wording.
        graph: what `read_graph` made of it.
    """
    nodes = _dml_nodes(document) if is_dml_graph(document) else _named_nodes(document, graph)
    return [node for node in nodes if node.fields]


def _named_nodes(document: Mapping[str, Any], graph: Graph) -> Iterator[OmittedFields]:
    operations = {node.name: node.operation for node in graph.nodes}
    for place, members in enumerate(cast("Sequence[Mapping[str, Any]]", document["nodes"])):
        desc = operations[members["name"]]
        if isinstance(desc, OperatorDesc):
            given = {entry.name for entry in desc.facts.fields_by_kind["input"]}
            fields = [field for field in fields_filled_in(members, desc) if field not in given]
            yield OmittedFields(members["name"], desc.operator_type, ("nodes", place), "desc", fields)


def _dml_nodes(document: Mapping[str, Any]) -> Iterator[OmittedFields]:
    for place, node in enumerate(cast("Sequence[Mapping[str, Any]]", document["Nodes"])):
        operator = node["Desc"].get("Operator")
        if operator is not None:
            desc, (_, desc_member) = parse_operator(operator, complete=True), operator_members(operator)
            path: Path = ("Nodes", place, "Desc", "Operator")
            fields = fields_filled_in(operator, desc)
            yield OmittedFields(f"Nodes[{place}]", desc.operator_type, path, desc_member, fields)
