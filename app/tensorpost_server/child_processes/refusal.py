"""`FunctionRefusal`: a function of a child process says why it did not do what it was asked for."""

from __future__ import annotations


class FunctionRefusal(Exception):
    """Travels to the server as its kind and message.

    Attributes:
        kind: `unsupported`: the library computes no such model; `inputs`: not of these inputs; `memory`: it needs more
            memory than it may take.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
