"""Answers with some rows of an output: their tag, and the bytes of these rows among those of whole slices."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

from tensorpost.bodies.answer_rows import answer_tag, call_digest
from tensorpost.values.problems import CallChanged

from .background_threads import CallerThreads

_SHORT_BYTES = 1 << 16  # of a body whose digest takes about as long as to switch threads
_PART_OF_CALL = (b"content-type", b"tensorpost-shape", b"tensorpost-dtype")


async def check_tag(
    path: str, query: str, fields: Mapping[bytes, bytes], body: Sequence[memoryview], backend: str,
    threads: CallerThreads, stored_tags: Sequence[str] = (),
) -> str:  # fmt: skip
    """The tag of an answer, which is that of `If-Range` if there is one.

    Args:
        path: the path of the request, as it is routed.
        query: its query.
        fields: its header fields.
        body: the bytes of its body.
        backend: what computes it, as the answer says.
        threads: where long digests are computed.
        stored_tags: what tells its stored graph and held tensors from others.

    Raises:
        CallChanged: the tag in `If-Range` is another one.
    """
    values = [fields.get(name, b"").decode("latin-1") for name in _PART_OF_CALL] + [*stored_tags]
    large = sum(map(len, body)) > _SHORT_BYTES
    tag = answer_tag(await threads.run(large, call_digest, path, query, values, body), backend)
    known = fields.get(b"if-range", tag.encode()).decode("latin-1").strip(" \t")
    if known == tag:
        return tag
    digest, _, before = known.strip('"').partition("-")
    if tag.startswith(f'"{digest}-'):
        raise CallChanged(
            f"If-Range belongs to an answer that {before[:40]} computed, and this one is computed by {backend}; send "
            f"backend={before.partition('+')[0][:40]}, or request all rows again without If-Range",
            extra={"reason": "backend"},
        )
    raise CallChanged(
        "If-Range belongs to another call: its operation, its query, the bytes of its body, its stored graph or a held "
        "tensor differ from those of this request; request all rows again without If-Range",
        extra={"reason": "call"},
    )


async def part_of(slices: AsyncGenerator[memoryview], skip: int, length: int) -> AsyncGenerator[memoryview]:
    """The bytes of slices without the first `skip`, and no more than `length`."""
    try:
        async for block in slices:
            part = block[skip : skip + length]
            skip, length = max(0, skip - len(block)), length - len(part)
            yield part
    finally:
        await slices.aclose()
