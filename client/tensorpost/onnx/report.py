"""Collecting violations while a node is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..values.problems import Violation, nearest

MOST_VIOLATIONS = 64

Path = tuple[str | int, ...]


@dataclass(slots=True)
class Report:
    """What is wrong with one node so far, and warnings.

    Attributes:
        source: the document the rules come from, where a rule names no other.
        violations: the rules that are broken.
        warnings: sentences about what is legal, but other implementations answer differently.
    """

    source: str
    violations: list[Violation] = field(default_factory=list[Violation])
    warnings: list[str] = field(default_factory=list[str])

    def add(self, code: str, path: Path, message: str, value: object, expected: str) -> None:
        """Note a broken rule; beyond `MOST_VIOLATIONS` the rest would only repeat them."""
        if len(self.violations) < MOST_VIOLATIONS:
            self.violations.append(Violation(code, path, message, value, expected, self.source))


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The end of a sentence that names the known word most like this one; empty if none is."""
    guess = nearest(str(word), known)
    return f"; did you mean {guess!r}?" if guess else ""
