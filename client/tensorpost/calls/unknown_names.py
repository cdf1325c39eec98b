"""What a name that the SDK has not could mean: loaded only when somebody asked for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..descriptors import operator_meant
from ..onnx import ONNX_OPERATORS
from ..values.problems import nearest

_SYNONYMS: Mapping[str, str] = {
    "cast": "astype", "cat": "concatenate", "concat": "concatenate", "div": "divide", "dot": "matmul",
    "expand": "broadcast_to", "gather": "take", "interpolate": "resample", "join": "concatenate", "mul": "multiply",
    "permute": "transpose", "reduce_max": "max", "reduce_mean": "mean", "reduce_min": "min", "reduce_sum": "sum",
    "resize": "resample", "sub": "subtract", "zoom": "resample",
}  # fmt: skip
"""What other libraries call the clients' methods."""
_OTHER_WAYS: Mapping[str, str] = {
    "argsort": "topk(x, x.shape[-1], largest=False) gives the elements in ascending order, and their indices",
    "expand_dims": 'the ONNX operator is onnx("Unsqueeze", x, [axis])',
    "flip": "slice(x, np.s_[::-1]) reverses an axis",
    "maximum": 'the ONNX operator is onnx("Max", ...)',
    "minimum": 'the ONNX operator is onnx("Min", ...)',
    "power": 'the ONNX operator is onnx("Pow", ...)',
    "repeat": "numpy.repeat repeats each element, as resample with mode='nearest' does; tile "
    "lays whole arrays side by side",
    "sort": "topk(x, x.shape[-1], largest=False) gives the elements in ascending order, and their indices",
    "stack": "give each array one more axis, as in x[np.newaxis], and concatenate them along it",
}
"""How a client does what NumPy has a function of that name for, where no method has the same arguments."""
_ALIKE = 0.7  # a name of another function is often as similar as a misspelt one: flip and clip


def method_hint(name: str, methods: Sequence[str]) -> str:
    """The end of a message about a method that the clients have not; empty if nothing is near.

    Args:
        name: what was asked for.
        methods: what there is.
    """
    if other := _by_another_name(name, methods):
        return other
    if found := nearest(name, [method for method in methods if method[:1] == name[:1].lower()], alike=_ALIKE):
        return f"; did you mean {found}?"
    operator = operator_meant(name)
    how = f"; DirectML's {operator} is run with a descriptor: run(parse_operator(document, complete=True), ...)"
    return how if operator else ""


def _by_another_name(name: str, methods: Sequence[str]) -> str:
    if name.lower() in methods:
        return f"; did you mean {name.lower()}?"
    if hint := _SYNONYMS.get(name.lower()):
        return f"; the method is {hint}"
    if hint := _OTHER_WAYS.get(name.lower()):
        return f"; {hint}"
    op_type = next((s.op_type for s in ONNX_OPERATORS if s.op_type.lower() == name.lower().replace("_", "")), None)
    return "" if op_type is None else f'; the ONNX operator is onnx("{op_type}", ...)'


def module_hint(name: str, names: Sequence[str], methods: Sequence[str]) -> str:
    """The same for the package, which operators are no members of: of its names and its clients' methods."""
    if name in methods:
        return f"; it is a method of a client: Client().{name}(...)"
    if name.endswith("Desc"):
        return "; the other descriptors are in tensorpost.descriptors"
    if hint := _by_another_name(name, methods):
        return f"{hint}, of a client: Client()"
    if guess := nearest(name, names):
        return f"; did you mean {guess}?"
    hint = method_hint(name, methods)
    return f"{hint}, of a client: Client()" if hint else ""
