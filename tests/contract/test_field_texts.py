"""Every field of every operator has a text, and the classes' docstrings, which people read, have all of them."""

from __future__ import annotations

import inspect
import re

import pytest

import tensorpost.descriptors as dml
from tensorpost.descriptors import OPERATORS, OperatorDesc
from tensorpost.descriptors.field_texts import COMMON, documented, field_texts

by_type = pytest.mark.parametrize("cls", OPERATORS, ids=lambda cls: cls.operator_type)


@by_type
def test_every_field_has_a_sentence(cls: type[OperatorDesc]) -> None:
    texts = field_texts(cls)

    assert [*texts] == [field.attribute_name for field in cls.facts.fields]
    for name, text in texts.items():
        assert re.fullmatch(r"\S.*\S\.", text), f"{name}: {text!r} is no sentence of one line"
        assert len(text.split()) > 1, f"{name}: {text!r} says too little"
        assert text.rstrip(".").lower() != name.replace("_", " ")


@by_type
def test_the_docstring_has_every_field_once_and_in_order(cls: type[OperatorDesc]) -> None:
    docstring = inspect.getdoc(cls) or ""
    section = docstring.partition("Attributes:\n")[2].partition("\n\n")[0]

    assert re.findall(r"^    (\w+): ", section, re.MULTILINE) == [field.attribute_name for field in cls.facts.fields]
    assert max(map(len, docstring.splitlines())) <= 120
    assert docstring.startswith(f"`DML_OPERATOR_{cls.operator_type}`: ")


def test_words_of_a_class_go_before_those_of_its_bases() -> None:
    gather = field_texts(dml.GatherOperatorDesc)
    assert gather["axis"] == "the dimension that is indexed."
    assert field_texts(dml.ElementWiseAddOperatorDesc)["a_tensor"] == COMMON["a_tensor"]
    # Its base, Pooling, describes the window; the class adds what only it has.
    assert "window" in field_texts(dml.MaxPoolingOperatorDesc)["window_size"]


def test_a_docstring_that_is_complete_stays_as_it_is() -> None:
    tile = dml.TileOperatorDesc
    assert documented(tile) == tile.__doc__
    assert "\n\nExamples:\n" in (tile.__doc__ or ""), "what follows the fields was lost"


def test_an_indented_docstring_means_the_same_as_one_without_indentation() -> None:
    """Python 3.13 and newer take the indentation away when they compile a class, older ones leave it."""
    words = "What it is.\n\n    Attributes:\n        axis: the dimension\n            that is meant.\n    "
    indented = type("Gather", (dml.GatherOperatorDesc,), {"__doc__": words, "__module__": __name__})
    plain = type("Gather", (dml.GatherOperatorDesc,), {"__doc__": inspect.cleandoc(words), "__module__": __name__})
    assert field_texts(indented)["axis"] == field_texts(plain)["axis"] == "the dimension that is meant."
    assert documented(indented) == documented(plain)
