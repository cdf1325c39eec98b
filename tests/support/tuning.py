"""Other constants in the separable kernel: small arrays then take the ways that only large ones take otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tensorpost_server.forms import axis_plans, axis_sums, separable

__all__ = ["tuned"]


@contextmanager
def tuned(**constants: int) -> Iterator[None]:
    """These constants, in both files where they have that name, and no plan made with others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(separable, "PLANS", axis_plans._Plans(1 << 20))
        for name, value in constants.items():
            users = [module for module in (axis_plans, axis_sums, separable) if hasattr(module, name)]
            assert users, f"there is no constant {name}"
            for module in users:
                patch.setattr(module, name, value)
        yield
