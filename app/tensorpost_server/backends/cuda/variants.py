"""Kernels of files, compiled: one row per variant. What is not listed here is never launched, expressions excepted."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of one kernel.

    Attributes:
        file: the `.cu` file.
        kernel: the function in it.
        defines: preprocessor definitions, name and value.
        prelude: source to compile before the file's, for kernels that are made for an expression.
    """

    file: str
    kernel: str
    defines: tuple[tuple[str, str], ...]
    prelude: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options; NVRTC, nvcc and a host compiler all take them."""
        return ("-std=c++17", *(f"-D{name}={value}" for name, value in self.defines))

    @property
    def source(self) -> str:
        """The source, with all that it includes."""
        return self.prelude + source_of(self.file)

    def __str__(self) -> str:
        return " ".join([self.kernel, *(f"{name}={value}" for name, value in self.defines)])


@functools.cache
def source_of(file: str) -> str:
    """A file's text with the shared headers in their places.

    One text, since CuPy's cache on disk is keyed by it: a header in a file of its own could change unnoticed.
    """
    text = (_HERE / file).read_text(encoding="utf-8")
    for header in ("common.cuh", "numbers.cuh"):
        if (line := f'#include "{header}"') in text:
            text = text.replace(line, (_HERE / header).read_text(encoding="utf-8"))
    return text


def _variant(file: str, kernel: str, **defines: object) -> Variant:
    return Variant(file, kernel, tuple((name, str(value)) for name, value in defines.items()))


# ---- Copies ----------------------------------------------------------------------------------------------------------


def copy_variant(store: int, load: int, *, splat: bool, wide: bool) -> Variant:
    """Copies words of `store` bytes; see copy.cu.

    Args:
        store: bytes written at once.
        load: bytes read at once; as many as are written if fewer than 16 are. 0 to write the fill value.
        splat: repeat one element of `load` bytes.
        wide: offsets of 64 bits.
    """
    return _variant("copy.cu", "copy_words", STORE=store, LOAD=load, SPLAT=int(splat), WIDE=int(wide))


def units_variant(item: int, *, wide: bool) -> Variant:
    """Lays items of `item` bytes in shared memory and writes them as vectors; see copy.cu."""
    return _variant("copy.cu", "copy_units", UNITS=1, ITEM=item, WIDE=int(wide))


def interleave_variant(item: int, lines: int) -> Variant:
    """Interleaves `lines` lines of items of `item` bytes, or splits one line into as many; see copy.cu."""
    return _variant("copy.cu", "copy_interleaved", LINES=lines, ITEM=item)


def rows_variant(item: int, parts: int) -> Variant:
    """Makes rows of up to `parts` parts, 1 or 4, all aligned to `item` bytes; see rows.cu."""
    return _variant("rows.cu", "copy_rows", ITEM=item, PARTS=parts)


def transpose_variant(item: int, *, wide: bool) -> Variant:
    """Transposes items of `item` bytes; see transpose.cu."""
    return _variant("transpose.cu", "transpose", ITEM=item, WIDE=int(wide))


def byte_transpose_variant(*, wide: bool) -> Variant:
    """Transposes single bytes whose lines are not aligned; see transpose_bytes.cu."""
    return _variant("transpose_bytes.cu", "transpose_bytes", WIDE=int(wide))


INTERLEAVED = ((1, 2), (2, 2), (4, 2), (1, 4), (2, 4))
"""Bytes of an item, and lines. Of more bytes, tiles of a transpose are large enough."""
_COPIES = [
    *((16, load, False) for load in (16, 8, 4, 2, 1)),
    *((16, load, True) for load in (8, 4, 2, 1)),
    *((store, store, False) for store in (8, 4, 2, 1)),
    *((store, 0, False) for store in (16, 8, 4, 2, 1)),
]

# ---- Resample --------------------------------------------------------------------------------------------------------

BLEND_TYPES = {"float32": "Float32", "float16": "Float16", "bfloat16": "BFloat16", "uint8": "UInt8", "int8": "Int8"}
"""Types with fused kernels: those of DirectML's operators, and bfloat16."""
PASS_TYPES = {**BLEND_TYPES, "uint16": "UInt16", "int16": "Int16", "uint32": "UInt32", "int32": "Int32"}
"""Types that one pass along one axis may read or write; the other side is float32 or the same type."""
# (taps along x, taps along y, input planes together)
_LINEAR = [(2, 1, 1), (1, 2, 1), (1, 2, 2), (1, 2, 4), (2, 2, 1), (2, 2, 2), (2, 2, 4)]
_CUBIC = [(4, 1, 1), (1, 4, 1), (4, 4, 1)]


def gather_variant(item: int) -> Variant:
    """Nearest, for elements of `item` bytes, read where they are; see resample.cu."""
    return _variant("resample.cu", "resample_gather", GATHER=item, COLUMNS=min(8, 16 // item))


def bytes_variant(columns: int, *, whole: bool) -> Variant:
    """Linear along x and y of unsigned bytes, `columns` columns a thread, read where they are; see resample.cu."""
    blocks = (8 if whole else 7) if columns == 8 else 10  # of 64 registers a thread, or 72, or 48
    return _variant("resample.cu", "resample_bytes", BYTES=1, COLUMNS=columns, WHOLE=int(whole), MIN_BLOCKS=blocks)


def move_variant(item: int) -> Variant:
    """Nearest, for elements of 1 or 2 bytes, staged; see resample.cu."""
    return _staged(f"Raw{item}", 8 // item, 1, 1, 1)


def blend_variant(dtype: str, taps_x: int, taps_y: int, planes: int) -> Variant:
    """Weighted sums along up to four axes at once; see resample.cu."""
    return _staged(BLEND_TYPES[dtype], 4, taps_x, taps_y, planes)


def _staged(stored: str, columns: int, taps_x: int, taps_y: int, planes: int) -> Variant:
    return _variant(
        "resample.cu",
        "resample_staged",
        STAGED=stored,
        COLUMNS=columns,
        TAPS_X=taps_x,
        TAPS_Y=taps_y,
        PLANES=planes,
        # Of 64 registers a thread then; four taps need more.
        MIN_BLOCKS=8 if max(taps_x, taps_y) <= 2 else 1,
    )


def pass_variant(source: str, target: str) -> Variant:
    """Weighted sums along one axis; see resample.cu."""
    return _variant("resample.cu", "resample_pass", SOURCE_TYPE=PASS_TYPES[source], TARGET_TYPE=PASS_TYPES[target])


VARIANTS: tuple[Variant, ...] = (
    *(copy_variant(store, load, splat=splat, wide=wide) for store, load, splat in _COPIES for wide in (False, True)),
    *(units_variant(item, wide=wide) for item in (1, 2, 4, 8) for wide in (False, True)),
    *(interleave_variant(item, lines) for item, lines in INTERLEAVED),
    *(rows_variant(item, parts) for item in (1, 2, 4, 8) for parts in (1, 4)),
    *(transpose_variant(item, wide=wide) for item in (1, 2, 4, 8, 16) for wide in (False, True)),
    *(byte_transpose_variant(wide=wide) for wide in (False, True)),
    *(gather_variant(item) for item in (1, 2, 4, 8, 16)),
    *(bytes_variant(columns, whole=whole) for columns in (8, 4) for whole in (False, True)),
    *(move_variant(item) for item in (1, 2)),
    *(blend_variant(dtype, *taps) for dtype, taps in itertools.product(BLEND_TYPES, (*_LINEAR, *_CUBIC))),
    *(
        pass_variant(source, target)
        for source, target in dict.fromkeys(
            pair for dtype in PASS_TYPES for pair in ((dtype, dtype), (dtype, "float32"), ("float32", dtype))
        )
    ),
)
"""All of them. Cubic exists for every type since ONNX asks for it in floating point and, exactly, in 8 bits."""
