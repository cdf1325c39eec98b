"""What notebooks show: HTML of layouts, operations, results and verdicts. Colours suit light and dark themes.

IPython asks values for `_repr_html_` and shows what it returns; nothing here needs IPython.
"""

from __future__ import annotations

import base64
import html
import json
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .layout import Layout
from .operation import Operation

_ROWS, _COLUMNS, _BUFFER = 6, 8, 32  # most that is drawn: rows, columns, elements of the buffer
_CELL = 30  # pixels
_HUES = (174, 262, 30, 205, 340, 90)
_PICTURE_SIDE = 16  # rows and columns from which an array is shown as a picture
_LARGEST_PICTURE = 256  # of its sides, pixels; larger ones are thinned out
_UNITS = ("bytes", "KiB", "MiB", "GiB")


def table_html(rows: Sequence[tuple[str, str]], title: str = "") -> str:
    """A table of two columns. Texts are escaped, a title is one line above."""
    left = "style='text-align:left'"
    cells = "".join(
        f"<tr><th {left}>{html.escape(name)}</th><td {left}>{html.escape(text)}</td></tr>" for name, text in rows
    )
    caption = f"<strong>{html.escape(title)}</strong>" if title else ""
    return f"<div>{caption}<table>{cells}</table></div>"


def operation_html(operation: Operation) -> str:
    """A descriptor or node: its attributes as a table, and a drawing of each tensor's layout."""
    document = json.loads(operation.to_document_text())
    if "op_type" in document:
        fields = {"opset": document["opset"], **document["inputs"], **document.get("attributes", {})}
    else:
        fields = document["desc"]
    rows = [(name, str(value)) for name, value in fields.items() if not _is_tensor(value)]
    tensors = "".join(
        f"<div style='margin-right:24px'>{layout_html(slot.layout, slot.name)}</div>"
        for slot in (*operation.inputs, *operation.outputs)
    )
    return f"<div>{table_html(rows, operation.name)}<div style='display:flex;flex-wrap:wrap'>{tensors}</div></div>"


def _is_tensor(value: Any) -> bool:
    first = next(iter(cast("list[Any]", value) if isinstance(value, list) else [value]), None)
    return isinstance(first, dict) and not {"DataType", "shape"}.isdisjoint(cast("dict[str, Any]", first))


def layout_html(layout: Layout, name: str = "") -> str:
    """Sizes and strides in words, and an inline SVG: the last two dimensions with each element's place in the buffer.

    Below the dimensions is the beginning of the buffer: coloured like the row that lies there, empty where no drawn
    element does. Rows and columns beyond the first few are left out.
    """
    strides = ", ".join(map(str, layout.strides))
    words = (
        f"{layout.data_type.numpy_name}, sizes ({', '.join(map(str, layout.sizes))}), strides ({strides})"
        f"{'' if layout.packed else ', not packed'}, {_size(layout.size_in_bytes)}"
    )
    text = f"<strong>{html.escape(name)}</strong> {html.escape(words)}" if name else html.escape(words)
    drawing = "" if 0 in layout.sizes else _drawing(layout)
    return f"<div><div>{text}</div>{drawing}</div>"


def _drawing(layout: Layout) -> str:
    sizes, strides = (1, 1, *layout.sizes)[-2:], (0, 0, *layout.strides)[-2:]
    rows, columns = min(sizes[0], _ROWS), min(sizes[1], _COLUMNS)
    places = [[y * strides[0] + x * strides[1] for x in range(columns)] for y in range(rows)]
    row_of = {place: y for y, line in reversed([*enumerate(places)]) for place in line}
    used = max(row_of)
    length = min(used + 1, _BUFFER)
    cells = [_cell(x, y, str(places[y][x]), y) for y in range(rows) for x in range(columns)]
    top = rows * _CELL + 34
    line = [_cell(index % 16, 0, str(index), row_of.get(index), top + index // 16 * _CELL) for index in range(length)]
    more = "" if (rows, columns) == sizes else f" of {sizes[0]} x {sizes[1]}"
    width = max(columns, min(length, 16), 8) * _CELL + 2
    height = top + math.ceil(length / 16) * _CELL + 2
    end = " …" if used + 1 > length else ""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' role='img' "
        "font-family='monospace' font-size='12'>"
        "<title>The place of each element in the buffer</title>"
        f"{''.join(cells)}<text x='0' y='{rows * _CELL + 22}' fill='currentColor'>{rows} x {columns}{more}; "
        f"the buffer{end}:</text>{''.join(line)}</svg>"
    )


def _cell(x: int, y: int, text: str, row: int | None, top: int = 1) -> str:
    fill = "none" if row is None else f"hsl({_HUES[row % len(_HUES)]} 60% 55% / 35%)"
    left, upper = x * _CELL + 1, y * _CELL + top
    return (
        f"<rect x='{left}' y='{upper}' width='{_CELL - 2}' height='{_CELL - 2}' rx='4' fill='{fill}' "
        f"stroke='currentColor' stroke-opacity='0.4'/><text x='{left + _CELL / 2 - 1}' y='{upper + _CELL / 2 + 3}' "
        f"text-anchor='middle' fill='currentColor'>{text}</text>"
    )


def arrays_html(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Each array in words, and as a picture if it looks like one, else its first numbers."""
    return "".join(
        f"<div><strong>{html.escape(name)}</strong> {array.dtype.name}, {array.shape}, {_size(array.nbytes)}"
        f"<br/>{_preview(array)}</div>"
        for name, array in arrays.items()
    )


def _preview(array: NDArray[Any]) -> str:
    if array.ndim > 2 and array.shape[-1] in (3, 4) and min(array.shape[-3:-1]) >= _PICTURE_SIDE:
        array = np.moveaxis(array, -1, -3)  # channels last, as Pillow and the HTTP API have pictures
    *_, height, width = (1, 1, *array.shape)
    channels = array.shape[-3] if array.ndim > 2 and array.shape[-3] in (3, 4) else 1
    if min(height, width) < _PICTURE_SIDE or array.dtype.kind not in "fiub":
        text = np.array2string(array, threshold=64, edgeitems=3)
        return f"<pre>{html.escape(text)}</pre>"
    planes = array.reshape(-1, channels, height, width)[0]
    step = -(-max(height, width) // _LARGEST_PICTURE)
    picture = np.moveaxis(planes[:, ::step, ::step], 0, -1).astype(np.float64)
    finite = picture[np.isfinite(picture)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if array.dtype == np.uint8:
        low, high = 0.0, 255.0
    elif low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    scaled = np.nan_to_num((picture - low) / ((high - low) or 1.0) * 255 + 0.5, nan=0, posinf=255, neginf=0)
    data = base64.b64encode(_png(np.clip(scaled, 0, 255).astype(np.uint8))).decode()
    shown = f"{low:g} is black, {high:g} is white" + (f", every {step}th row and column" if step > 1 else "")
    return f"<img alt='{shown}' title='{shown}' style='image-rendering:pixelated' src='data:image/png;base64,{data}'/>"


def _png(picture: NDArray[np.uint8]) -> bytes:
    """Rows x columns x channels as PNG (W3C, Portable Network Graphics, sections 5 and 7)."""
    height, width, channels = picture.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    colour = {1: 0, 3: 2, 4: 6}[channels]
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # each line begins with its filter, 0
    lines[:, 1:] = picture.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    data = zlib.compress(lines.tobytes())
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def timing_html(stages: Mapping[str, float]) -> str:
    """A bar of the stages' milliseconds, and the numbers below it."""
    total = sum(stages.values())
    if not total:
        return ""
    parts = "".join(
        f"<div style='width:{100 * ms / total:.2f}%;background:hsl({_HUES[index % len(_HUES)]} 60% 45%)'></div>"
        for index, ms in enumerate(stages.values())
    )
    words = ", ".join(f"{html.escape(name)} {ms:g} ms" for name, ms in stages.items())
    return f"<div style='display:flex;width:320px;height:10px'>{parts}</div><small>{words}</small>"


def _size(count: int) -> str:
    unit = min(len(_UNITS) - 1, max(count, 1).bit_length() // 10)
    return f"{count / 1024**unit:.3g} {_UNITS[unit]}"
