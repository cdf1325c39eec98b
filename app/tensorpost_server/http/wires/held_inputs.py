"""Held tensors in calls: inputs that refer to one, as `?filter=@mask` or `{"tensor": "mask"}`, and outputs to keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np
from starlette.types import Scope

from tensorpost.bodies.strict_json import read_json
from tensorpost.values.layout import Layout
from tensorpost.values.problems import Forbidden, InvalidDescriptor, InvalidJson, InvalidParameter, Violation
from tensorpost.values.tensor_box import part_of_box, read_box

from ..access.access_control import SCOPES
from ..calls.call import AnnouncedTensor
from ..media_types import MediaType
from .call_parser import MOST_JSON_CONTAINERS, CallParser
from .tensor_store import OpenTensor, TensorStore
from .wire import ReadContext

MEMBER = "tensors"
"""The member of a frame's metadata with the inputs that are held, as JSON text."""

FREE_FIELD = b"tensorpost-free"
"""The header field with names of held tensors, separated by commas, that are freed before the request is answered."""

_INLINE_COPY_BYTES = 256 * 1024  # some 50 microseconds
_MEMBERS = ("tensor", "box", "sizes")
_EXPECTED = '{"tensor": NAME}, and if need be "box" and "sizes"'


class HeldReference(NamedTuple):
    """An input that refers to a held tensor.

    Attributes:
        name: the held tensor's.
        box: the part that is meant, as `0:10,:,::2`; empty for all of it.
        sizes: sizes that its elements are read with, in the same order; None for its own.
        place: where the reference stands in a document; empty for the query.
    """

    name: str
    box: str = ""
    sizes: tuple[int, ...] | None = None
    place: tuple[str | int, ...] = ()

    @classmethod
    def of_text(cls, text: str) -> HeldReference:
        """Read `@mask` or `@mask[0:10,:]`.

        Raises:
            InvalidParameter: it is neither.
        """
        name, bracket, box = text.removeprefix("@").partition("[")
        if not name or (bracket and not box.endswith("]")):
            raise InvalidParameter(
                f"{text[:60]!r} names no held tensor; write @NAME, or @NAME[0:10,:] for a part of it"
            )
        return cls(name, box.removesuffix("]"))

    @classmethod
    def of_document(cls, value: object, place: tuple[str | int, ...]) -> HeldReference | None:
        """Read `{"tensor": "mask", "box": "0:10,:", "sizes": [10, 4]}`; None if the value has no member `tensor`.

        Raises:
            InvalidDescriptor: another member, or one of another type.
        """
        if not isinstance(value, Mapping) or "tensor" not in value:
            return None
        members = cast("Mapping[str, object]", value)
        name, box, sizes = (members.get(member) for member in _MEMBERS)
        found: tuple[int, ...] | None = None
        wrong = next((member for member in members if member not in _MEMBERS), None)
        if not isinstance(name, str):
            wrong = "tensor"
        elif not isinstance(box, (str, type(None))):
            wrong = "box"
        elif sizes is not None:
            numbers = cast("list[object]", sizes) if isinstance(sizes, list) else [None]
            found = tuple([each for each in numbers if isinstance(each, int) and type(each) is int and each >= 0])
            wrong = "sizes" if len(found) < len(numbers) or len(found) > 64 else wrong
        if wrong is not None:
            message = (
                f"refers to a held tensor, and its member {wrong[:60]!r} is none that there is or is of another type"
            )
            raise InvalidDescriptor.of([Violation("document", (*place, wrong[:60]), message, None, _EXPECTED)])
        return cls(cast("str", name), cast("str | None", box) or "", found, place)


@dataclass(frozen=True, slots=True)
class HeldInput:
    """An input of a call, with the held tensor that it refers to.

    Attributes:
        name: the input's name.
        layout: type and sizes; packed.
        data: its bytes.
        tag: what tells its elements from others.
    """

    name: str
    layout: Layout
    data: memoryview
    tag: str

    @property
    def announced(self) -> AnnouncedTensor:
        """The input as the call's parser sees it."""
        layout = self.layout
        return AnnouncedTensor(self.name, layout.data_type, layout.sizes, layout.size_in_bytes, is_held=True)


@dataclass(slots=True, eq=False)
class CallerTensors:
    """The held tensors that a request reads; `close` ends its uses of them.

    Attributes:
        store: where they are.
        owner: the caller that they belong to.
        may_keep: whether the caller may make some.
    """

    store: TensorStore
    owner: str
    may_keep: bool
    _used: list[OpenTensor] = field(default_factory=list[OpenTensor])

    @classmethod
    def of(cls, store: TensorStore, owner: str, scope: Scope) -> CallerTensors:
        """The held tensors of the caller of a request."""
        scopes: Sequence[str] | None = scope.get(SCOPES)
        return cls(store, owner, scopes is None or "tensors" in scopes)

    async def use(self, name: str) -> OpenTensor:
        """A tensor, in use until the request ends.

        Raises:
            TensorGone, TensorNotFound: there is none of this name.
        """
        tensor = await self.store.use(self.owner, name)
        self._used.append(tensor)
        return tensor

    async def read(self, name: str, reference: HeldReference, context: ReadContext) -> HeldInput:
        """An input that refers to a tensor. A part whose elements do not follow each other is copied.

        Raises:
            TensorGone, TensorNotFound: there is no such tensor.
            InvalidParameter, InvalidDescriptor: it has no such part, or cannot be read with these sizes.
            TooBusy: a copy needs memory that is not there now.
        """
        tensor = await self.use(reference.name)
        try:
            begin, layout = part_of_box(tensor.layout, read_box(reference.box))
        except InvalidParameter as error:
            raise _refused(name, reference, "box", error.detail) from None
        data = tensor.data[begin : begin + layout.size_in_bytes]
        if data.nbytes == tensor.data.nbytes:
            data = tensor.data  # the same object each time: a device knows it again
        if not layout.packed:
            packed = Layout.row_major(layout.data_type, layout.sizes)
            block = context.reserve(packed.size_in_bytes).memory(packed.size_in_bytes)
            large = packed.size_in_bytes > _INLINE_COPY_BYTES
            await context.slow_threads.run(large, np.copyto, packed.view(block), layout.view(data))
            data, layout = block, packed
        if reference.sizes is not None:
            if math.prod(reference.sizes) != math.prod(layout.sizes):
                message = f"the held tensor {reference.name!r} has {math.prod(layout.sizes):,} elements there"
                raise _refused(name, reference, "sizes", f"{message}; sizes {list(reference.sizes)} have others")
            layout = Layout.row_major(layout.data_type, reference.sizes)
        return HeldInput(name, layout, data, f"{tensor.tag}[{reference.box}]{reference.sizes}")

    def close(self) -> None:
        """End all uses."""
        for tensor in self._used:
            tensor.release()
        self._used.clear()

    def check_keep(self) -> None:
        """Refuse to keep tensors for a caller whose key does not allow it.

        Raises:
            Forbidden: it does not.
        """
        if not self.may_keep:
            raise Forbidden("this key lacks the scope 'tensors', which the parameter keep requires")


def may_refer(query: str) -> bool:
    """Whether a query may name held tensors."""
    return "=@" in query or "=%40" in query


def fields_without_body(fields: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """The header fields of a call that has held inputs and an empty body, without the Content-Type of that.

    npy and pictures stay: without Accept, the answer is of the same type.
    """
    media_type = fields.get(b"content-type", b"")
    if media_type == MediaType.NPY.value.encode() or media_type.startswith(b"image/"):
        return fields
    return {name: value for name, value in fields.items() if name != b"content-type"}


def references_in_query(parser: CallParser, parameters: Mapping[str, str]) -> dict[str, HeldReference]:
    """The parameters that are inputs and refer to held tensors, as `filter=@mask`.

    Raises:
        InvalidParameter: a reference is malformed.
    """
    return {
        name: HeldReference.of_text(text)
        for name, text in parameters.items()
        if text.startswith("@") and parser.has_input(name)
    }


def references_in_metadata(text: str | None) -> dict[str, HeldReference]:
    """The inputs that refer to held tensors, of the member `tensors` of a frame's metadata.

    Raises:
        InvalidJson: it is not JSON.
        InvalidDescriptor: it is no object of references.
    """
    if text is None:
        return {}
    try:
        value: object = read_json(text.encode(), max_containers=MOST_JSON_CONTAINERS)
    except InvalidJson as error:
        raise InvalidJson(f"$.{MEMBER}: {error.detail}") from None
    found: dict[str, HeldReference] = {}
    for name, each in (cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {"": None}).items():
        reference = HeldReference.of_document(each, (MEMBER, name))
        if reference is None:
            message = "the metadata's tensors must be JSON text that names a held tensor for each input"
            raise InvalidDescriptor.of(
                [Violation("document", (MEMBER,), message, None, '{"filter": {"tensor": "mask"}}')]
            )
        found[name] = reference
    return found


def _refused(name: str, reference: HeldReference, member: str, message: str) -> InvalidParameter | InvalidDescriptor:
    if not reference.place:
        return InvalidParameter(f"{name}: {message}", extra={"parameter": name})
    return InvalidDescriptor.of([Violation("held-tensor", (*reference.place, member), message)])
