"""How near `tensorpost.compat` comes to the libraries it speaks for: prints the table of docs/compat.md.

    python benchmarks/compat.py                 three minutes; a library that is not installed is left out and named
    python benchmarks/compat.py --only torch

Each row of `ROWS` is one way to call a library. Random cases are resized by the library and, as `tensorpost.compat`
says, by the NumPy kernels, without a server. The cases come from fixed seeds.

* nearest: the input is 0, 1, 2 and so on along one axis, so that the results are indices. Counted are the indices that
  differ, over all pairs of sizes up to `--up-to`.
* weighted, floating point: the input is random in [0, 1). The largest difference is given in ULP of the values in
  [1/2, 1), which is 2^-24 in float32: for axes of up to 17 elements, and for axes of 100 to 1000.
* weighted, integers: random over the type's range (noise, which is the worst case). Given are the share of elements
  that differ, by how much at most, and how much on average with its sign, in levels.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tensorpost import compat
from tensorpost.descriptors import OperatorDesc
from tensorpost.onnx import OnnxNode
from tensorpost_server.operators import form_of

Array = NDArray[Any]
Target = tuple[Any, Any]
"""Height and width of the result, or the factors for them."""
Subject = OperatorDesc | OnnxNode
Kind = Literal["nearest", "weighted"]
Layout = Literal["HW", "NCHW", "HWC"]

DISTRIBUTIONS = {"torch": "torch", "cv2": "opencv-python-headless", "PIL": "pillow", "scipy": "scipy"}
FACTORS = (0.29, 0.33, 0.5, 0.7, 0.75, 1.1, 1.5, 1.7, 2.0, 2.3)


@dataclass(frozen=True)
class Row:
    """One way to call a library.

    Attributes:
        library: name of the module.
        call: how the call is written.
        kind: nearest or weighted.
        theirs: calls the library: module, array, target.
        ours: what `tensorpost.compat` sends: array, target.
        dtype: the array's.
        layout: the array's.
        factors: targets are factors, not sizes.
        only: which cases there are: source and target sizes.
        note: what `only` leaves out, for the table.
    """

    library: str
    call: str
    kind: Kind
    theirs: Callable[[Any, Array, Target], Array]
    ours: Callable[[Array, Target], Subject]
    dtype: str = "float32"
    layout: Layout = "HW"
    factors: bool = False
    only: Callable[[tuple[int, int], Target], bool] = field(default=lambda _source, _target: True)
    note: str = ""

    @property
    def name(self) -> str:
        """Unique among the rows."""
        return " ".join(filter(None, (self.library, self.call, self.dtype, self.note)))

    @property
    def in_table(self) -> str:
        """The first column."""
        return f"{self.library} `{self.call}`" + (f", {self.note}" if self.note else "")


@dataclass
class Nearness:
    """What was measured over some cases.

    Attributes:
        elements: how many elements were compared.
        different: how many of them differ.
        largest: largest difference, in ULP or levels.
        total: sum of all differences with their signs (theirs less ours).
        sent: kinds of subjects.
    """

    elements: int = 0
    different: int = 0
    largest: float = 0.0
    total: float = 0.0
    sent: set[str] = field(default_factory=set[str])

    @property
    def share(self) -> float:
        """The share of elements that differ, from 0 to 1."""
        return self.different / max(1, self.elements)

    def add(self, theirs: Array, ours: Array, unit: float) -> None:
        """Compare one result."""
        if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
            raise AssertionError(f"{theirs.dtype}{theirs.shape} and {ours.dtype}{ours.shape}")
        apart = (theirs.astype(np.float64) - ours.astype(np.float64)) / unit
        self.elements += apart.size
        self.different += int(np.count_nonzero(apart))
        self.largest = max(self.largest, float(np.abs(apart).max(initial=0.0)))
        self.total += float(apart.sum())


def run(subject: Subject, x: Array) -> Array:
    """Compute on NumPy, as a server would."""
    out = np.empty(subject.outputs[0].layout.sizes, x.dtype)
    form_of(subject).fill(np, [x], tuple((0, size) for size in out.shape), out)
    return out


def describe(subject: Subject) -> str:
    """The operator's name, with what of its attributes tells one from another."""
    if isinstance(subject, OnnxNode):
        return "ONNX Resize" + (", antialias" if subject.attribute("antialias") else "")
    return subject.operator_type


# ---- cases -----------------------------------------------------------------------------------------------------------


def laid_out(x: Array, layout: Layout) -> Array:
    """A picture of rows and columns in the row's layout; three channels are shifted copies."""
    if layout == "NCHW":
        return x[np.newaxis, np.newaxis]
    return np.ascontiguousarray(np.stack([x, x[::-1], x[:, ::-1]], axis=-1)) if layout == "HWC" else x


def noise(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    """Random elements: [0, 1), or all of an integer type (up to 2^24, so that float32 holds each)."""
    if np.dtype(dtype).kind == "f":
        return rng.random(tuple(shape)).astype(dtype)
    limits = np.iinfo(dtype)
    low, high = max(limits.min, -(1 << 24)), min(limits.max, 1 << 24)
    return rng.integers(low, high, tuple(shape), endpoint=True).astype(dtype)


def shapes(row: Row, count: int, least: int, most: int, seed: int) -> Iterator[tuple[tuple[int, int], Target]]:
    """Random sources and targets that the row has."""
    rng = np.random.default_rng(seed)
    found = 0
    while found < count:
        height, width = (int(size) for size in rng.integers(least, most, 2, endpoint=True))
        if row.factors:
            down, across = (float(factor) for factor in rng.choice(FACTORS, 2))
            target: Target = (down, across)
            enough = min(height * target[0], width * target[1]) >= 1
        else:
            rows, columns = (int(size) for size in rng.integers(least, most, 2, endpoint=True))
            target = (rows, columns)
            enough = True
        if enough and row.only((height, width), target):
            found += 1
            yield (height, width), target


def weighted(row: Row, cases: Iterable[tuple[tuple[int, int], Target]], seed: int = 1) -> Nearness:
    """Compare the row's results on noise."""
    module, rng, found = importlib.import_module(row.library), np.random.default_rng(seed), Nearness()
    real = np.dtype(row.dtype)
    unit = float(np.finfo(real).eps) / 2 if real.kind == "f" else 1.0
    for source, target in cases:
        x = laid_out(noise(rng, source, row.dtype), row.layout)
        subject = row.ours(x, target)
        found.sent.add(describe(subject))
        found.add(row.theirs(module, x, target), run(subject, x), unit)
    return found


def nearest(row: Row, pairs: Iterable[tuple[int, Any]]) -> Nearness:
    """Compare the row's indices along the width, for pairs of a size and a target."""
    module, found = importlib.import_module(row.library), Nearness()
    for size, target in pairs:
        x = laid_out(np.arange(size, dtype=row.dtype)[np.newaxis], row.layout)
        subject = row.ours(x, (1, target))
        found.sent.add(describe(subject))
        found.add(row.theirs(module, x, (1, target)), run(subject, x), 1.0)
    return found


def all_pairs(row: Row, up_to: int) -> Iterator[tuple[int, Any]]:
    """Every size with every target that the row has."""
    for size in range(1, up_to + 1):
        targets: Iterable[Any] = FACTORS if row.factors else range(1, up_to + 1)
        yield from ((size, target) for target in targets if not row.factors or size * target >= 1)


# ---- the rows --------------------------------------------------------------------------------------------------------


def _torch_row(mode: str, kind: Kind, *, dtype: str = "float32", factors: bool = False, **options: Any) -> Row:
    given = "scale_factor" if factors else "size"

    def theirs(torch: Any, x: Array, target: Target) -> Array:
        functional = importlib.import_module("torch.nn.functional")
        return functional.interpolate(torch.from_numpy(x), mode=mode, **{given: target}, **options).numpy()

    def ours(x: Array, target: Target) -> Subject:
        return compat.torch_interpolate(x, mode=mode, **{given: target}, **options)

    written = ", ".join([f"mode='{mode}'", *(f"{key}={value}" for key, value in options.items())])
    written += ", scale_factor" if factors else ""
    return Row("torch", f"interpolate({written})", kind, theirs, ours, dtype, "NCHW", factors)


def _opencv_row(flag: str, kind: Kind, *, dtype: str = "float32", factors: bool = False, layout: Layout = "HW") -> Row:
    def arguments(target: Target) -> dict[str, Any]:
        return {"dsize": None, "fy": target[0], "fx": target[1]} if factors else {"dsize": target[::-1]}

    def theirs(cv2: Any, x: Array, target: Target) -> Array:
        return cv2.resize(x, interpolation=getattr(cv2, flag), **arguments(target))

    def ours(x: Array, target: Target) -> Subject:
        return compat.opencv_resize(x, interpolation=flag, **arguments(target))

    written = f"resize({flag}{', fx, fy' if factors else ''})"
    return Row("cv2", written, kind, theirs, ours, dtype, layout, factors)


def _pillow_row(name: str, kind: Kind, *, dtype: str = "float32", layout: Layout = "HW") -> Row:
    def theirs(_pil: Any, x: Array, target: Target) -> Array:
        image = importlib.import_module("PIL.Image")
        return np.asarray(image.fromarray(x).resize(target[::-1], image.Resampling[name]))

    def ours(x: Array, target: Target) -> Subject:
        return compat.pillow_resize(x, target[::-1], name)

    return Row("PIL", f"resize({name})", kind, theirs, ours, dtype, layout)


def _scipy_row(order: int, kind: Kind, *, dtype: str = "float32", **options: Any) -> Row:
    def factors_of(x: Array, target: Target) -> list[float]:
        return [length / size for length, size in zip(target, x.shape, strict=True)]

    def theirs(_scipy: Any, x: Array, target: Target) -> Array:
        ndimage = importlib.import_module("scipy.ndimage")
        return ndimage.zoom(x, factors_of(x, target), order=order, **options)

    def ours(x: Array, target: Target) -> Subject:
        return compat.scipy_zoom(x, factors_of(x, target), order=order, **options)

    written = ", ".join([f"order={order}", *(f"{key}={value!r}" for key, value in options.items())])
    return Row("scipy", f"zoom({written})", kind, theirs, ours, dtype)


def _grows(source: tuple[int, int], target: Target) -> bool:
    return all(out >= size for size, out in zip(source, target, strict=True))


def _not_one_wide(_source: tuple[int, int], target: Target) -> bool:
    return target[1] != 1  # PyTorch repeats its first row there


def _height_first(source: tuple[int, int], target: Target) -> bool:
    return target[0] < source[0] and target[1] > source[1]


def _width_first(source: tuple[int, int], target: Target) -> bool:
    # Where both shrink, and the height more, Pillow goes now this way, now that.
    return target[0] >= source[0] or target[0] * source[1] >= target[1] * source[0]


def _shrinks(source: tuple[int, int], target: Target) -> bool:
    return not _grows(source, target)


def _but(row: Row, only: Callable[[tuple[int, int], Target], bool], note: str = "") -> Row:
    return replace(row, only=only, note=note)


ROWS: tuple[Row, ...] = (
    _torch_row("nearest", "nearest"),
    _torch_row("nearest", "nearest", factors=True),
    _torch_row("nearest", "nearest", dtype="uint8"),
    _torch_row("nearest-exact", "nearest"),
    _torch_row("nearest-exact", "nearest", factors=True),
    _torch_row("bilinear", "weighted"),
    _torch_row("bilinear", "weighted", factors=True),
    _torch_row("bilinear", "weighted", align_corners=True),
    _torch_row("bilinear", "weighted", dtype="float16"),
    _torch_row("bilinear", "weighted", dtype="float64"),
    _torch_row("bicubic", "weighted"),
    _torch_row("bicubic", "weighted", align_corners=True),
    _but(_torch_row("bilinear", "weighted", antialias=True), _not_one_wide),
    _but(_torch_row("bicubic", "weighted", antialias=True), _not_one_wide),
    _but(_torch_row("bilinear", "weighted", dtype="uint8"), _grows, "enlarging"),
    _but(_torch_row("bilinear", "weighted", dtype="uint8"), _shrinks, "shrinking"),
    _but(_torch_row("bicubic", "weighted", dtype="uint8"), _grows, "enlarging"),
    _but(_torch_row("bilinear", "weighted", antialias=True, dtype="uint8"), _not_one_wide),
    _but(_torch_row("bicubic", "weighted", antialias=True, dtype="uint8"), _not_one_wide),
    _opencv_row("INTER_NEAREST", "nearest"),
    _opencv_row("INTER_NEAREST", "nearest", factors=True),
    _opencv_row("INTER_NEAREST_EXACT", "nearest"),
    _opencv_row("INTER_LINEAR", "weighted"),
    _opencv_row("INTER_LINEAR", "weighted", factors=True),
    _opencv_row("INTER_LINEAR_EXACT", "weighted"),
    _opencv_row("INTER_CUBIC", "weighted"),
    _opencv_row("INTER_LINEAR", "weighted", dtype="uint8", layout="HWC"),
    _opencv_row("INTER_LINEAR_EXACT", "weighted", dtype="uint8", layout="HWC"),
    _opencv_row("INTER_CUBIC", "weighted", dtype="uint8", layout="HWC"),
    _opencv_row("INTER_LINEAR", "weighted", dtype="uint16"),
    _pillow_row("NEAREST", "nearest"),
    _pillow_row("BILINEAR", "weighted"),
    _pillow_row("BICUBIC", "weighted"),
    _but(_pillow_row("BILINEAR", "weighted", dtype="uint8", layout="HWC"), _width_first, "width first"),
    _but(_pillow_row("BILINEAR", "weighted", dtype="uint8", layout="HWC"), _height_first, "height first"),
    _but(_pillow_row("BICUBIC", "weighted", dtype="uint8", layout="HWC"), _width_first, "width first"),
    _but(_pillow_row("BICUBIC", "weighted", dtype="uint8", layout="HWC"), _height_first, "height first"),
    _but(_pillow_row("BICUBIC", "weighted", dtype="int32"), _width_first, "width first"),
    _scipy_row(0, "nearest", mode="nearest"),
    _scipy_row(0, "nearest", mode="constant"),
    _scipy_row(0, "nearest", mode="nearest", grid_mode=True),
    _scipy_row(1, "weighted", mode="nearest"),
    _scipy_row(1, "weighted", mode="nearest", grid_mode=True),
    _scipy_row(1, "weighted", mode="nearest", dtype="uint8"),
)


# ---- the table -------------------------------------------------------------------------------------------------------


def in_words(row: Row, up_to: int) -> tuple[str, str]:
    """What is sent, and how near it comes."""
    if row.kind == "nearest":
        found = nearest(row, all_pairs(row, up_to))
        if not found.different:
            return _sent(found), f"exact at all {found.elements:,} indices"
        return _sent(found), f"differs at {found.different:,} of {found.elements:,} indices ({found.share:.3%})"
    small = weighted(row, shapes(row, 400, 1, 17, seed=2))
    large = weighted(row, shapes(row, 16, 100, 1000, seed=3))
    sent = _sent(Nearness(sent=small.sent | large.sent))
    if np.dtype(row.dtype).kind == "f":
        return sent, f"within {small.largest:.4g} ULP; axes of 100 to 1000: {large.largest:,.4g}"
    mean = round(large.total / large.elements, 2) + 0.0  # no minus before a zero
    return sent, f"{large.share:.3%} differ, by at most {max(small.largest, large.largest):g}, {mean:.2f} on average"


def _sent(found: Nearness) -> str:
    return " or ".join(sorted(found.sent))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(DISTRIBUTIONS), help="one library")
    parser.add_argument("--up-to", type=int, default=96, help="largest size of the nearest pairs (default 96)")
    options = parser.parse_args()
    wanted = [options.only] if options.only else list(DISTRIBUTIONS)
    warnings.simplefilter("ignore", UserWarning)  # SciPy speaks about sizes it rounds, PyTorch about scale_factor
    installed: list[str] = []
    for library in wanted:
        try:
            importlib.import_module(library)
        except ModuleNotFoundError:
            print(f"{DISTRIBUTIONS[library]} is not installed: left out")
            continue
        installed.append(library)
        print(f"{DISTRIBUTIONS[library]} {importlib.metadata.version(DISTRIBUTIONS[library])}", flush=True)
    print(f"\n| Call | dtype | Sent | Theirs against ours, pairs up to {options.up_to} |\n| --- | --- | --- | --- |")
    for row in ROWS:
        if row.library in installed:
            sent, words = in_words(row, options.up_to)
            print(f"| {row.in_table} | {row.dtype} | {sent} | {words} |", flush=True)


if __name__ == "__main__":
    main()
