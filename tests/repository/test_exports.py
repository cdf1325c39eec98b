"""What the packages promise by name: `__all__` in public modules, and an error tree that is drawn as it is."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.batches import each
from tests.support.public_names import NAMES

import tensorpost
from tensorpost.values import problems
from tensorpost.values.problems import TensorpostError

ROOT = Path(__file__).parents[2]
PUBLIC = json.loads(NAMES.read_text("utf-8"))
MODULES = sorted(path for package in ("client", "app") for path in (ROOT / package).rglob("*.py"))

# Clients in any language compare these texts, so a change of one is a break of the interface: it belongs in the
# changelog, not only here.
CODES = {
    "TensorpostError": "error",
    "InvalidRequest": "invalid-request",
    "InvalidDescriptor": "invalid-descriptor",
    "UnsupportedAtLevel": "unsupported-at-feature-level",
    "UnknownOperator": "unknown-operator",
    "InvalidJson": "invalid-json",
    "InvalidFrame": "invalid-frame",
    "TensorMismatch": "tensor-mismatch",
    "InvalidParameter": "invalid-parameter",
    "BodyMismatch": "body-length-mismatch",
    "CallChanged": "call-changed",
    "LengthRequired": "length-required",
    "UnsupportedMediaType": "unsupported-media-type",
    "NotAcceptable": "not-acceptable",
    "Unauthenticated": "unauthenticated",
    "Forbidden": "forbidden",
    "NotFound": "not-found",
    "GraphNotFound": "graph-not-found",
    "TensorNotFound": "tensor-not-found",
    "TensorGone": "tensor-gone",
    "TensorExists": "tensor-exists",
    "RegionNotFound": "region-not-found",
    "MethodNotAllowed": "method-not-allowed",
    "LimitExceeded": "limit-exceeded",
    "Unavailable": "unavailable",
    "InsufficientStorage": "insufficient-storage",
    "TooBusy": "too-busy",
    "QuotaExceeded": "quota-exceeded",
    "NotReady": "not-ready",
    "NoBackend": "no-backend",
    "LibraryFailed": "library-failed",
    "LibraryUnavailable": "library-unavailable",
    "OutOfDeviceMemory": "out-of-device-memory",
    "DeviceLost": "device-lost",
    "ReceiveTimeout": "receive-timeout",
    "DeadlineExceeded": "deadline-exceeded",
    "ServerFault": "internal-error",
    "ConnectionProblem": "connection-problem",
    "ConnectFailed": "connect-failed",
    "RequestTimeout": "request-timeout",
    "IncompleteBody": "incomplete-body",
}


def exported(tree: ast.Module) -> list[str] | None:
    """The names in `__all__`, which must be a literal; None without one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", None) for t in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return None


def bound(body: list[ast.stmt]) -> Iterator[str]:
    """The names that a module binds at its top level, also inside `if` and `try`."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
        elif isinstance(node, ast.If):
            yield from bound(node.body + node.orelse)
        elif isinstance(node, ast.Try):
            yield from bound(node.body + node.orelse + node.finalbody)
            yield from bound([statement for handler in node.handlers for statement in handler.body])


def in_order(name: str) -> tuple[int, list[str | int]]:
    """Constants, then classes, then the rest; numbers in names count as numbers (Ruff's rule RUF022)."""
    group = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return group, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def is_public(path: Path) -> bool:
    """Whether users import the module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:]).removesuffix(".__init__") in PUBLIC


@each("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_list_of_what_a_module_offers_is_true(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    names = exported(tree)
    if names is None:
        assert not is_public(path) or hands_on(tree) or path.name == "__init__.py", "a public module has an __all__"
        return
    assert len(set(names)) == len(names)
    assert names == sorted(names, key=in_order)
    assert set(names) <= set(bound(tree.body))


def hands_on(tree: ast.Module) -> bool:
    """Whether a module is only a docstring and `from ... import *`."""
    words, *imports = tree.body
    return isinstance(words, ast.Expr) and all(isinstance(node, ast.ImportFrom) for node in imports)


def test_the_package_gives_what_it_lists() -> None:
    for name in tensorpost.__all__:
        assert getattr(tensorpost, name) is not None
        assert name in dir(tensorpost)
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        _ = tensorpost.Klient  # pyright: ignore[reportAttributeAccessIssue] # wrong on purpose


def family(cls: type[TensorpostError] = TensorpostError) -> Iterator[type[TensorpostError]]:
    """The class and its descendants that the packages define, not those of other tests in this process."""
    if cls.__module__.partition(".")[0] in ("tensorpost", "tensorpost_server"):
        yield cls
        for child in cls.__subclasses__():
            yield from family(child)


def drawn() -> dict[str, str | None]:
    """Class to parent, as the module docstring of `problems` draws them."""
    parents: dict[str, str | None] = {}
    line_of: list[str] = []
    for line in (problems.__doc__ or "").splitlines():
        entry = re.match(r"    ((?:[|` ][- ]{3})*(?:[|`]-- )?)([A-Z]\w+)", line)
        if entry:
            depth = len(entry[1]) // 4
            line_of = [*line_of[:depth], entry[2]]
            parents[entry[2]] = line_of[depth - 1] if depth else None
    return parents


def test_the_drawing_is_the_tree() -> None:
    real = {
        cls.__name__: next((base.__name__ for base in cls.__mro__[1:] if issubclass(base, TensorpostError)), None)
        for cls in family()
    }
    assert drawn() == real
    assert len(real) >= 25


def test_the_drawing_is_read_as_it_is_drawn() -> None:
    assert drawn()["TensorpostError"] is None
    assert drawn()["UnsupportedAtLevel"] == "InvalidDescriptor"
    assert drawn()["LimitExceeded"] == "InvalidRequest"
    assert drawn()["TooBusy"] == "Unavailable"


def test_every_error_has_a_code_of_its_own_that_stays() -> None:
    assert {cls.__name__: cls.code for cls in family()} == CODES
    assert len(set(CODES.values())) == len(CODES)
    for cls in family():
        assert "code" in vars(cls)
        assert "title" in vars(cls)
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", cls.code)
        assert cls.__doc__
        assert not cls.__doc__.startswith(cls.__name__ + "(")  # a dataclass without a docstring gets its signature


def test_every_error_is_exported_where_it_is_defined() -> None:
    for cls in family():
        assert cls.__module__ == "tensorpost.values.problems"
        assert cls.__name__ in problems.__all__


def test_titles_differ() -> None:
    titles = [cls.title for cls in family()]
    assert len(set(titles)) == len(titles)
