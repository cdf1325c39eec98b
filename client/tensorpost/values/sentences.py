"""Sentences that name fields and arguments by reference, so that each audience reads its own words for them.

A rule says `named("Axis") + " is 9, but there are 4 dimensions"`. As text this is how a document calls the field; a
query says `axis`, the command line `--set axis`: `worded` puts their words in place of the references.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Reference:
    """A field, an attribute or an argument that a sentence names.

    Attributes:
        name: its name in a document, or that of the function's argument.
        index: which entry of it is meant; None for the whole.
        text: how the sentence calls it.
    """

    name: str
    index: int | None
    text: str

    def text_of(self, name: str) -> str:
        """The reference with another name: `name`, or `name[index]`."""
        return name if self.index is None else f"{name}[{self.index}]"


class Sentence(str):
    """A sentence whose references are known. What is joined to it with `+` keeps them, an f-string loses them."""

    __slots__ = ("parts",)
    parts: tuple[str | Reference, ...]

    def __new__(cls, parts: tuple[str | Reference, ...]) -> Self:
        """Join the parts."""
        sentence = super().__new__(cls, "".join([part if isinstance(part, str) else part.text for part in parts]))
        sentence.parts = parts
        return sentence

    def __add__(self, other: str) -> Sentence:
        return Sentence((*self.parts, *_parts_of(other)))

    def __radd__(self, other: str) -> Sentence:
        return Sentence((*_parts_of(other), *self.parts))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.parts,))


def named(name: str, index: int | None = None, *, text: str = "") -> Sentence:
    """A reference as the beginning of a message; its text is `name` or `name[index]` unless another is given."""
    reference = Reference(name, index, text)
    return Sentence((reference if text else replace(reference, text=reference.text_of(name)),))


def references_of(message: str) -> list[Reference]:
    """What a message names by reference."""
    return [part for part in _parts_of(message) if isinstance(part, Reference)]


def worded(message: str, text_of: Callable[[Reference], str]) -> str:
    """The message with another text for each of its references, which stay references."""
    parts = _parts_of(message)
    return Sentence(tuple([part if isinstance(part, str) else replace(part, text=text_of(part)) for part in parts]))


def _parts_of(message: str) -> tuple[str | Reference, ...]:
    return message.parts if isinstance(message, Sentence) else (message,)
