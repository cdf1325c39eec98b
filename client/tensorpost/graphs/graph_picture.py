"""A graph as a picture: SVG, in layers from the inputs down to the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from ..values.graph import Graph, GraphConstant, GraphInput, NodeOutput
from ..values.layout import Layout

__all__ = ["shape_text", "svg_of"]

_WIDTH, _HEIGHT, _GAP, _STEP, _MARGIN = 210, 46, 24, 40, 16  # of a box, between boxes, between layers, around; pixels
_LONGEST = 28  # characters of a line in a box
_STYLE = """
svg { background: #fff; font: 12px system-ui, sans-serif }
rect { fill: #f6f8fa; stroke: #57606a; rx: 6px }
rect.input { fill: #ddf4ff } rect.constant { fill: #fff8c5 } rect.output { fill: #dafbe1 }
text { fill: #1f2328 } text.kind { fill: #57606a } path { fill: none; stroke: #57606a }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117 } rect { fill: #161b22; stroke: #8b949e }
rect.input { fill: #0c2d6b } rect.constant { fill: #3b2300 } rect.output { fill: #033a16 }
text { fill: #e6edf3 } text.kind { fill: #8b949e } path { stroke: #8b949e }
}"""


@dataclass(slots=True)
class _PictureBox:
    """A box of the picture.

    Attributes:
        kind: `input`, `constant`, `node` or `output`.
        title: its first line.
        detail: its second line.
        sources: the boxes that it reads, by their numbers.
        layer: how far it is from the inputs.
        x: its left side.
    """

    kind: str
    title: str
    detail: str
    sources: Sequence[int] = ()
    layer: int = 0
    x: int = 0

    @property
    def y(self) -> int:
        """Its upper side."""
        return _MARGIN + self.layer * (_HEIGHT + _STEP)


def shape_text(layout: Layout) -> str:
    """`float32 1x3x224x224`."""
    return f"{layout.data_type.numpy_name} {'x'.join(map(str, layout.sizes)) or '-'}"


def svg_of(graph: Graph) -> str:
    """The picture as the text of an SVG file, which fits light and dark pages."""
    boxes = _boxes(graph)
    layers: dict[int, list[_PictureBox]] = {}
    for box in boxes:
        layers.setdefault(box.layer, []).append(box)
    width = 2 * _MARGIN + max([len(row) * (_WIDTH + _GAP) - _GAP for row in layers.values()])
    height = 2 * _MARGIN + (max(layers) + 1) * (_HEIGHT + _STEP) - _STEP
    for row in layers.values():
        left = (width - len(row) * (_WIDTH + _GAP) + _GAP) // 2
        for place, box in enumerate(row):
            box.x = left + place * (_WIDTH + _GAP)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    title = f"<title>A graph of {len(graph.nodes)} nodes</title>"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{title}<style>{_STYLE}</style>']
    for box in boxes:
        for number in box.sources:
            source = boxes[number]
            x0, y0, x1, y1 = source.x + _WIDTH // 2, source.y + _HEIGHT, box.x + _WIDTH // 2, box.y
            middle = (y0 + y1) // 2
            parts.append(f'<path d="M{x0} {y0} C{x0} {middle} {x1} {middle} {x1} {y1}"/>')
    for box in boxes:
        parts.append(
            f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{_WIDTH}" height="{_HEIGHT}"/>'
            f'<text x="{box.x + 10}" y="{box.y + 19}">{_line(box.title)}</text>'
            f'<text class="kind" x="{box.x + 10}" y="{box.y + 36}">{_line(box.detail)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _boxes(graph: Graph) -> list[_PictureBox]:
    """Inputs, constants, nodes and outputs, each after those that it reads."""
    boxes = [_PictureBox("input", slot.name, shape_text(slot.layout)) for slot in graph.inputs]
    boxes += [_PictureBox("constant", slot.name, shape_text(slot.layout)) for slot, _ in graph.constants]
    first = len(boxes)
    for node in graph.nodes:
        sources: list[int] = []
        for source in node.inputs:
            match source:
                case GraphInput(index):
                    sources.append(index)
                case GraphConstant(index):
                    sources.append(len(graph.inputs) + index)
                case NodeOutput(number, _):
                    sources.append(first + number)
        layer = 1 + max([boxes[number].layer for number in sources], default=0)
        shape = shape_text(node.operation.outputs[0].layout)
        boxes.append(_PictureBox("node", f"{node.name}: {node.operation.name}", shape, sources, layer))
    last = max([box.layer for box in boxes]) + 1
    for slot, ref in zip(graph.output_slots, graph.outputs, strict=True):
        boxes.append(_PictureBox("output", slot.name, shape_text(slot.layout), [first + ref.node], last))
    return boxes


def _line(text: str) -> str:
    return escape(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\u2026")
