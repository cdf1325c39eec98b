"""`each`: many small cases in one test, where `pytest.mark.parametrize` would take longer than the cases do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

__all__ = ["each"]


def each(
    names: str, values: Iterable[Any], *, ids: Callable[[Any], object] | Iterable[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test: one item of pytest's that runs every case, and whose failure names all that fail.

    A case of pytest's own costs 2 to 4 ms in each of a run's processes, whatever it does; it is the right one for cases
    that take longer, that are skipped or expected to fail, or whose fixtures must be new for each.

    Args:
        names: of the parameters, separated by commas as in `parametrize`.
        values: one for each case; a tuple where there are several names.
        ids: what names a case in a failure, or the function that says it; default the values.
    """
    parameters = [name.strip() for name in names.split(",")]
    cases = list(values)
    named = [str(found) for found in (map(ids, cases) if callable(ids) else ids or map(repr, cases))]
    assert cases, "a test of no cases proves nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def every_case(*args: Any, **fixtures: Any) -> None:
            failures: list[str] = []
            for name, case in zip(named, cases, strict=True):
                given = dict(zip(parameters, case if len(parameters) > 1 else (case,), strict=True))
                try:
                    test(*args, **fixtures, **given)
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001 # the case is named
                    failures.append(f"[{name[:100]}] {type(error).__name__}: {error}")
            assert not failures, "\n".join([f"{len(failures)} of {len(cases)} cases failed:", *failures])

        signature = inspect.signature(test)
        kept = [entry for name, entry in signature.parameters.items() if name not in parameters]
        assert len(kept) == len(signature.parameters) - len(parameters), f"{test.__name__} does not take {names}"
        every_case.__signature__ = signature.replace(parameters=kept)  # pyright: ignore[reportAttributeAccessIssue] # read by inspect
        return every_case

    return decorate
