"""What every operator descriptor shares: its facts and tensors, completion, rules and feature levels."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ..values.datatypes import TensorDataType
from ..values.operation import Slot
from ..values.problems import UnsupportedAtLevel, Violation, counted, entry_count
from ..values.sentences import Reference, named, worded
from .catalogue import SupportRow, facts_of, operator_of_class, pascal_case, slot_name
from .completion import CompletedDescriptor, Given, Inferred, NotGiven, packed, with_size
from .feature_levels import NEWEST, FeatureLevel
from .field_texts import documented
from .tensor import BufferTensorDesc

__all__ = [
    "OPERATORS",
    "Given",
    "Inferred",
    "NotGiven",
    "OperatorDesc",
    "TensorPath",
    "in_attribute_names",
    "output_settings",
    "packed",
    "with_size",
]


TensorPath = tuple[str] | tuple[str, int]
"""Where a tensor stands in its operator: the attribute's name, with an index if it is an array of tensors."""

if TYPE_CHECKING:
    OPERATORS: list[type[OperatorDesc]]
    """Every operator that has a class, by number."""
else:

    def __getattr__(name: str) -> Any:
        if name != "OPERATORS":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module(__package__).OPERATORS  # all families, which are above this module


class OperatorDesc(CompletedDescriptor):
    """Base of every operator descriptor.

    A subclass is named after its operator, as `TileOperatorDesc`, and states the fields in snake_case,
    `operator_rules()`, and `output_layouts()` or `outputs_like` where an output follows from the rest. Everything else
    about it comes from the catalogue.

    Attributes:
        summary: what the operator does, a phrase that begins in lower case; by default the first line of the docstring.
    """

    summary: ClassVar[str] = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if (operator_type := operator_of_class(cls.__name__)) is not None:
            cls.operator_type, cls.facts = operator_type, facts_of(operator_type)
            cls._kinds = {
                kind: tuple([field.attribute_name for field in fields])
                for kind, fields in cls.facts.fields_by_kind.items()
            }
            if "summary" not in cls.__dict__:
                cls.summary = (cls.__doc__ or "").partition("\n")[0].rpartition("`: ")[2]
            if cls.__doc__:  # python -OO leaves none
                cls.__doc__ = documented(cls)

    # ---- what the catalogue says -------------------------------------------------------------------------------------

    @classmethod
    def path_of_slot(cls, slot: str) -> TensorPath | None:
        """The path of the input that travels under this name; None if there is no such input.

        Examples:
            `input` is `("input_tensor",)` in TILE, `input_2` is `("input_tensors", 2)` in JOIN.
        """
        for field in cls.facts.fields_by_kind["input"]:
            name = field.attribute_name
            if not field.is_array and slot == field.slot_name:
                return (name,)
            stem, _, index = slot.rpartition("_")
            if field.is_array and stem == field.slot_name and index.isascii() and index.isdigit() and len(index) < 6:
                return (name, int(index)) if index == str(int(index)) else None
        return None

    # ---- Operation ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.operator_type

    @property
    def op_type(self) -> str:
        return self.operator_type

    @property
    def opset_version(self) -> None:
        """See `Operation.opset_version`."""

    @property
    def endpoint(self) -> str:
        return f"/v1/operators/{self.operator_type.lower()}"

    @property
    def inputs(self) -> tuple[Slot, ...]:
        return self._slots[0]

    @property
    def outputs(self) -> tuple[Slot, ...]:
        """See `Operation.outputs`. The only output is named `output`, whatever its field."""
        return self._slots[1]

    @cached_property
    def _slots(self) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
        inputs, outputs = self._tensors["input"], self._tensors["output"]
        names = ["output"] if len(outputs) == 1 else [_slot_of(path) for path, _ in outputs]
        return (
            tuple([Slot(_slot_of(path), tensor.layout) for path, tensor in inputs]),
            tuple([Slot(name, tensor.layout) for name, (_, tensor) in zip(names, outputs, strict=True)]),
        )

    def tensors(self, kind: str | None = None) -> Sequence[tuple[TensorPath, BufferTensorDesc]]:
        """The tensors that are there, each with its path; inputs first, in binding order.

        Args:
            kind: `input` or `output`; default both.
        """
        return self._tensors[kind]

    @cached_property
    def _tensors(self) -> Mapping[str | None, Sequence[tuple[TensorPath, BufferTensorDesc]]]:
        found: dict[str | None, list[tuple[TensorPath, BufferTensorDesc]]] = {"input": [], "output": []}
        for kind, tensors in found.items():
            for field in self._kinds[str(kind)]:
                value = getattr(self, field)
                if isinstance(value, tuple):
                    array = cast("tuple[BufferTensorDesc, ...]", value)
                    tensors += [((field, index), tensor) for index, tensor in enumerate(array)]
                elif value is not None:
                    tensors.append(((field,), value))
        return {**found, None: found["input"] + found["output"]}

    def to_document(self) -> dict[str, Any]:
        """`{"type": "DML_OPERATOR_...", "desc": {...}}`, which `parse_operator` and DxDispatch read."""
        return {"type": f"DML_OPERATOR_{self.operator_type}", "desc": self.to_json()}

    def _repr_html_(self) -> str:
        from ..values import notebooks as _html  # for notebooks only

        return _html.operation_html(self)

    def to_document_text(self) -> str:
        """`to_document` as compact JSON text, as it travels in a frame's head."""
        return self._document_text

    @cached_property
    def _document_text(self) -> str:
        return json.dumps(self.to_document(), separators=(",", ":"))

    # ---- feature levels ----------------------------------------------------------------------------------------------

    def validate_for(self, feature_level: str | int | FeatureLevel = NEWEST) -> None:
        """Check the descriptor against the operator's support tables.

        Args:
            feature_level: `"2_1"`, `FeatureLevel.L2_1` or the header's number; default the newest, 6_4.

        Raises:
            UnsupportedAtLevel: every field that the level does not support, and the level that does.
            InvalidParameter: there is no such level.
        """
        level = feature_level if isinstance(feature_level, FeatureLevel) else FeatureLevel.parse(feature_level)
        found = list(self.unsupported_at(level))
        if found:
            raise UnsupportedAtLevel.of(found)

    def lowest_feature_level(self) -> FeatureLevel | None:
        """The lowest level at which this descriptor is legal; None if it is at none (`validate_for()` says why)."""
        return next((level for level in FeatureLevel if not any(self.unsupported_at(level))), None)

    def level_rules(self, level: FeatureLevel) -> Iterator[Violation]:
        """What else depends on the level, for instance a mode that is newer than the operator. Nothing by default."""
        yield from ()

    def function_name(self) -> str | None:
        """The name by which the support tables tell apart what one operator computes (REDUCE); None for all others."""
        return None

    def unsupported_at(self, level: FeatureLevel) -> Iterator[Violation]:
        """What the level does not support, one violation per tensor and reason."""
        name = f"DML_OPERATOR_{self.operator_type}"
        source = f"{name} page, tensor support"
        if level < self.facts.since:
            yield Violation(
                "operator-newer-than-level", (), f"{name} needs feature level {self.facts.since}, not {level}",
                str(level), f"{self.facts.since} or above", source,
            )  # fmt: skip
            return
        function = self.function_name()
        for path, tensor in self._tensors[None]:
            field, count = pascal_case(path[0]), len(tensor.sizes)
            row = self.facts.row_at(level, field, function)
            low, high = row.dimension_counts if row else (0, 0)
            if not low <= count <= high:
                rows = self.facts.rows(field, function)
                needs = _first_level(rows, lambda r, n=count: r.dimension_counts[0] <= n <= r.dimension_counts[1])
                yield Violation(
                    "dimension-count-unsupported", (*_json_path(path), "Sizes"),
                    f"{name} takes {_span(low, high)} dimensions at feature level {level}, not {count}{needs}",
                    list(tensor.sizes), f"{_span(low, high)} dimensions", source,
                )  # fmt: skip
            types = row.data_types if row else ()
            if tensor.data_type not in types:
                rows = self.facts.rows(field, function)
                needs = _first_level(rows, lambda r, t=tensor.data_type: t in r.data_types)
                allowed = ", ".join(t.name for t in types)
                needs += "" if "from" in needs or not types else f"; it takes {allowed}"
                yield Violation(
                    "data-type-unsupported", (*_json_path(path), "DataType"),
                    f"{name} does not take {tensor.data_type.name} at feature level {level}{needs}",
                    tensor.data_type.name, f"one of {allowed}", source,
                )  # fmt: skip
        yield from self.level_rules(level)

    # ---- rules -------------------------------------------------------------------------------------------------------

    def rules(self) -> Iterator[Violation]:
        """Every broken rule: those of the tensors, the operator's own, then those of the sizes of outputs."""
        yield from self.tensor_rules()
        yield from self.operator_rules()
        with suppress(NotGiven):
            for output in self.output_layouts(Given(vars(self))):
                if output.why:
                    yield from self.sizes_are(output.sizes, output.why, output.field)

    def operator_rules(self) -> Iterator[Violation]:
        """The rules of the operator's page, beside those of its tensors. The base version states none."""
        yield from ()

    def tensor_rules(self) -> Iterator[Violation]:
        """The rules of every tensor, under its field, with what only its role as input or output forbids."""
        outputs = self._kinds["output"]
        for path, tensor in self._tensors[None]:
            for violation in tensor.rules():
                yield violation.prefixed(*_json_path(path))
            if path[0] in outputs:
                for violation in tensor.output_rules():
                    yield violation.prefixed(*_json_path(path))

    def same_type_and_rank(self, *typed: str) -> Iterator[Violation]:
        """The constraint most operators share: all tensors agree in DimensionCount, and some or all in DataType.

        Args:
            typed: attribute names of the tensors whose DataTypes must agree; default all.
        """
        yield from self.same_data_type(*typed)
        yield from self.same_dimension_count()

    def same_data_type(self, *fields: str) -> Iterator[Violation]:
        """Tensors that must agree in DataType with the first of them; all by default, absent ones aside."""
        (first_path, first), *others = self._tensors_of(fields) if fields else self._tensors[None]
        for path, tensor in others:
            if tensor.data_type != first.data_type:
                like = first.data_type.name
                yield Violation(
                    "data-types-differ", (*_json_path(path), "DataType"),
                    f"{_shown_path(path)} is {tensor.data_type.name} but {_shown_path(first_path)} is {like}; "
                    "they must agree", tensor.data_type.name, like, f"{self.page()}, tensor constraints",
                )  # fmt: skip

    def same_dimension_count(self, *fields: str) -> Iterator[Violation]:
        """Tensors that must agree in DimensionCount with the first of them; all by default, absent ones aside."""
        (first_path, first), *others = self._tensors_of(fields) if fields else self._tensors[None]
        for path, tensor in others:
            if len(tensor.sizes) != len(first.sizes):
                yield Violation(
                    "dimension-counts-differ", (*_json_path(path), "Sizes"),
                    f"{_shown_path(path)} has {len(tensor.sizes)} dimensions but {_shown_path(first_path)} has "
                    f"{len(first.sizes)}", list(tensor.sizes), f"{len(first.sizes)} dimensions",
                    f"{self.page()}, tensor constraints",
                )  # fmt: skip

    def _tensors_of(self, fields: Sequence[str]) -> Sequence[tuple[TensorPath, BufferTensorDesc]]:
        """The tensors of these fields that are there, of which there must be one."""
        return [pair for pair in self._tensors[None] if pair[0][0] in fields]

    def data_type_is(self, wanted: TensorDataType, *fields: str) -> Iterator[Violation]:
        """Tensors must have this DataType."""
        for path, tensor in self._tensors[None]:
            if path[0] in fields and tensor.data_type is not wanted:
                yield Violation(
                    "data-type", (*_json_path(path), "DataType"),
                    f"{_shown_path(path)} is {tensor.data_type.name}, but must be {wanted.name}",
                    tensor.data_type.name, wanted.name, self.page(),
                )  # fmt: skip

    def sizes_are(
        self, wanted: Sequence[int], why: str, *fields: str, code: str = "output-sizes"
    ) -> Iterator[Violation]:
        """Tensors must have these Sizes, if they have as many dimensions; `why` says what the sizes follow from."""
        for path, tensor in self._tensors[None]:
            if path[0] in fields and len(tensor.sizes) == len(wanted) and list(tensor.sizes) != list(wanted):
                yield Violation(
                    code, (*_json_path(path), "Sizes"), f"{_shown_path(path)}.Sizes must be " + why
                    + f", which is {list(wanted)}", list(tensor.sizes), str(list(wanted)), self.page(),
                )  # fmt: skip

    def count_is_length(self, count_field: str, array_field: str) -> Iterator[Violation]:
        """A count that was sent must be its array's length."""
        count, length = getattr(self, count_field), len(getattr(self, array_field))
        if count != length:
            yield Violation(
                "count-disagrees", (pascal_case(count_field),),
                named(pascal_case(count_field)) + f" is {count} but " + named(pascal_case(array_field))
                + f" has {entry_count(length)}; leave the count out or send the array's length", count, str(length),
                self.page(),
            )  # fmt: skip

    def one_entry_per_dimension(self, *array_fields: str, rank: int | None = None) -> Iterator[Violation]:
        """Arrays must have an entry for each dimension of the first tensor, or `rank` entries."""
        wanted = len(self._tensors[None][0][1].sizes) if rank is None else rank
        for field in array_fields:
            values = getattr(self, field)
            if len(values) != wanted:
                name = pascal_case(field)
                yield Violation(
                    "array-length", (name,),
                    named(name) + f" has {entry_count(len(values))} but the tensors have "
                    f"{counted(wanted, 'dimension')}; send one entry per dimension", list(values),
                    entry_count(wanted), self.page(),
                )  # fmt: skip

    def count_rules(self, count_field: str, array_field: str) -> Iterator[Violation]:
        """A count that was sent must be its array's length, and that the tensors' DimensionCount."""
        yield from self.count_is_length(count_field, array_field)
        yield from self.one_entry_per_dimension(array_field)

    def axis_is_below(self, rank: int, field: str = "axis") -> Iterator[Violation]:
        """An axis must be one of the tensor's dimensions."""
        axis = getattr(self, field)
        if not 0 <= axis < rank:
            yield self.broken(
                "axis", (pascal_case(field),),
                named(pascal_case(field)) + f" is {axis}, but there are {rank} dimensions: 0 to {rank - 1}", axis,
                f"0 to {rank - 1}",
            )  # fmt: skip

    def axes_are_below(self, rank: int, field: str = "axes") -> Iterator[Violation]:
        """Axes must be dimensions of a tensor of this rank; one that is there twice counts once, as in DirectML."""
        for index, axis in enumerate(getattr(self, field)):
            if axis >= rank:
                message = f"{axis} is not a dimension of the input"
                yield self.broken("axis", (pascal_case(field), index), message, axis, f"0 to {rank - 1}")

    def broken(self, code: str, path: tuple[str | int, ...], message: str, value: object, expected: str) -> Violation:
        """A violation of a rule of the operator's page."""
        return Violation(code, path, message, value, expected, self.page())

    @classmethod
    def page(cls) -> str:
        """The name of the operator's page in DirectML's reference."""
        return f"DML_{cls.operator_type}_OPERATOR_DESC"


def output_settings(violation: Violation) -> tuple[str, ...]:
    """Which settings of a call without a document describe an output that is required: `output_data_type`, ...

    Empty for other violations.
    """
    settings = {"DataType": "output_data_type", "Sizes": "output_sizes"}
    return tuple([settings[member] for member in violation.members])


def in_attribute_names(cls: type[OperatorDesc], violations: Sequence[Violation]) -> list[Violation]:
    """The violations with messages that say `scale_size` instead of `ScaleSize`, for callers who sent no document."""
    names = {field.name: field.attribute_name for field in cls.facts.fields_by_kind["attribute"]}

    def in_snake_case(reference: Reference) -> str:
        return reference.text_of(names.get(reference.name, reference.name))

    return [replace(v, message=worded(v.message, in_snake_case)) for v in violations]


def _slot_of(path: TensorPath) -> str:
    name = slot_name(str(path[0]))
    return name if len(path) == 1 else f"{name}_{path[1]}"


def _json_path(path: TensorPath) -> tuple[str | int, ...]:
    return (pascal_case(str(path[0])), *path[1:])


def _shown_path(path: TensorPath) -> str:
    name = pascal_case(str(path[0]))
    return name if len(path) == 1 else f"{name}[{path[1]}]"


def _first_level(rows: Sequence[SupportRow], accepts: Callable[[SupportRow], bool]) -> str:
    level = next((row.since for row in rows if accepts(row)), None)
    return f"; it does from {level} on" if level else ", and no level does"


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
