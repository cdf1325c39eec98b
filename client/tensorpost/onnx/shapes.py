"""`RULES`: one row for each operator that tensorpost computes itself, and what a node's row infers.

A rule serves all versions of its operator. It reads what a node was given and returns the shapes of its outputs with
parameters, in which nothing of the version is left: the server's form of the operator takes those.

Source: ONNX's operators, default domain, as `operators.json` lists them. Choices where the text is silent: negative
axes count from the end in every version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..values.problems import counted
from .directml_twins import untranslated
from .elementwise_shapes import ELEMENTWISE
from .inference_context import Broken, InferenceContext, InferredOutputs
from .line_shapes import LINES
from .movement_shapes import MOVEMENT
from .operator_row import OperatorRow
from .package import infer_by_package
from .parameters import BoundedParameters, Parameters
from .resize import RESIZE_ROW
from .result_bounds import BOUNDED, SIZES
from .tensor import OnnxTensor, too_large
from .tile import TILE_ROW
from .transform_shapes import TRANSFORMS

__all__ = ["RULES", "infer"]

RULES: Mapping[str, OperatorRow] = {
    "Tile": TILE_ROW,
    "Resize": RESIZE_ROW,
    "Upsample": RESIZE_ROW,
    **ELEMENTWISE,
    **MOVEMENT,
    **LINES,
    **TRANSFORMS,
}
"""What a node means, by operator."""
_BY_PACKAGE = OperatorRow(infer_by_package, untranslated)


def row_of(op_type: str) -> OperatorRow:
    """The operator's row; for those of ONNX Runtime, what the package `onnx` infers."""
    return RULES.get(op_type, _BY_PACKAGE)


def infer(context: InferenceContext) -> tuple[Parameters, list[tuple[str, OnnxTensor]]] | None:
    """The meaning of a node and its results; None if a rule is broken, which is then in the report."""
    row = row_of(context.schema.op_type)
    if context.report.violations and not (row.reads_broken and context.tensors):
        return None
    try:
        if context.is_bounded and context.schema.op_type not in BOUNDED:
            message = f"the sizes that {context.schema.op_type} makes follow from those that it reads; only these are "
            context.refuse("bounded", ("bounded",), f"{message}bounded: {', '.join(BOUNDED)}", True, "no bounded")
        outputs = row.rule(context)
        if isinstance(outputs.parameters, BoundedParameters):
            return outputs.parameters, _bounded_results(outputs.parameters)
        return outputs.parameters, list(_results(context, outputs))
    except Broken:
        return None


def _bounded_results(parameters: BoundedParameters) -> list[tuple[str, OnnxTensor]]:
    lines = [(each.name, OnnxTensor(each.data_type, (each.elements,))) for each in parameters.results]
    return [*lines, (SIZES, OnnxTensor("int64", (sum([each.rank for each in parameters.results]),)))]


def _results(context: InferenceContext, inferred: InferredOutputs) -> Iterable[tuple[str, OnnxTensor]]:
    shapes, outputs = inferred.shapes, context.schema.outputs
    names = [entry.name for entry in outputs]
    if outputs[-1].variadic:
        names = [f"{outputs[-1].name}_{index}" for index in range(len(shapes))]
    least = len(shapes) if outputs[-1].variadic else sum([not entry.optional for entry in outputs])
    wanted = context.outputs or max(1, least)  # all of LSTM's are optional
    if not least <= wanted <= len(shapes):
        message = f"{context.schema.name} has {counted(len(shapes), 'output')} here, not {wanted}"
        context.refuse("output-count", ("outputs",), message, wanted, str(len(shapes)))
    for index in range(wanted):
        entry = outputs[min(index, len(outputs) - 1)]
        kind = inferred.types.get(entry.variable or entry.name) or context.types.get(entry.variable) or entry.types[0]
        if too_large(kind, shapes[index]) or len(shapes[index]) > 64:
            message = f"the output would have the shape {list(shapes[index])[:64]}, which no array here can have"
            context.refuse(
                "output-too-large", ("outputs",), message, None, "fewer than 2^63 bytes, at most 64 dimensions"
            )
        yield "output" if len(shapes) == 1 else names[index], OnnxTensor(kind, shapes[index])
