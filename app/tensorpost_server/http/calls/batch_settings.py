"""What a stored graph says of batches, in the words of Triton's ModelConfig."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How many rows the calls of a stored graph may have, and whether several calls are computed together.

    Attributes:
        max_batch_size: most rows (the first size of every input and output) of a call, and of calls joined together.
        max_queue_delay_microseconds: how long a call waits for others at most; None if calls are not joined.
    """

    max_batch_size: int
    max_queue_delay_microseconds: int | None = None
