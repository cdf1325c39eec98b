"""`AsyncClient`: the calls of `Client`, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import _exchange as exchange
from ._answers import Progress, Result, Validation
from ._arrays import Subject, TensorData, onnx_node, resample_arrays, tile_descriptor
from ._async_sockets import AsyncPool, AsyncSocketTransport
from ._options import DEFAULT_TIMEOUT_SECONDS, Limits, Timeout
from ._origin import Origin
from ._setup import DEFAULT_BLOCK_BYTES, DEFAULT_LIMITS, DEFAULT_RETRIES, DEFAULT_URL, NO_HEADERS, set_up
from ._steps import AnswerHead, Flow, HandOut, Read, Request, Send, Step, Wait, resume
from .descriptors import FeatureLevel
from .onnx import NEWEST_OPSET
from .problems import ConnectionProblem
from .resampling import Mode

if TYPE_CHECKING:  # for annotations only: it takes long to load, and only https needs it
    import ssl

__all__ = ["AsyncClient"]

T = TypeVar("T")
Scalar = TypeVar("Scalar", bound=np.generic)


class AsyncAnswer(Protocol):
    """`Answer` for asyncio."""

    @property
    def head(self) -> AnswerHead: ...
    async def read_into(self, into: memoryview) -> int: ...
    async def close(self) -> None: ...


class AsyncTransport(Protocol):
    """`Transport` for asyncio."""

    async def send(self, request: Request) -> AsyncAnswer: ...
    async def close(self) -> None: ...


def _open(origin: Origin, limits: Limits) -> AsyncTransport:
    # httpx takes long to load, and is asked only for what it alone can do.
    if origin.is_direct:
        return AsyncSocketTransport(origin, AsyncPool(limits))
    from ._transport import AsyncOverHttpx

    return AsyncOverHttpx(origin, limits)


class AsyncClient:
    """A connection to a tensorpost server, for asyncio. The same calls as `Client`, to be awaited.

    May be shared between tasks of one event loop. A task that is cancelled closes its connection. `progress` functions
    are called on the event loop and must not block.

    Args:
        base_url: as for `Client`, and so are all others.
        timeout: as for `Client`.
        limits: as for `Client`.
        retries: as for `Client`.
        headers: as for `Client`.
        tls: as for `Client`.
        uds: as for `Client`.

    Example:
        >>> async def three_by_three(x):
        ...     async with AsyncClient("http://127.0.0.1:8000") as tp:
        ...         return await tp.tile(x, (1, 1, 3, 3))

    Raises:
        InvalidParameter: an argument is malformed.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        timeout: float | Timeout | None = DEFAULT_TIMEOUT_SECONDS,
        limits: Limits = DEFAULT_LIMITS,
        retries: int = DEFAULT_RETRIES,
        headers: Mapping[str, str] = NO_HEADERS,
        tls: ssl.SSLContext | bool = True,
        uds: str | None = None,
    ) -> None:
        self._origin, self._policy = set_up(base_url, timeout, limits, retries, headers, tls, uds)
        self._transport = _open(self._origin, limits)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._origin} over {self.transport}>"

    @property
    def transport(self) -> str:
        """As `Client.transport`."""
        return str(self._transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. The client cannot be used afterwards."""
        await self._transport.close()

    # ---- operators ---------------------------------------------------------------------------------------------------

    async def tile(
        self,
        x: NDArray[Scalar],
        repeats: Sequence[int],
        *,
        out: NDArray[Scalar] | None = None,
        backend: str | None = None,
        device: int | None = None,
        feature_level: str | int | FeatureLevel | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> NDArray[Scalar]:
        """As `Client.tile`."""
        desc = tile_descriptor(x, repeats)
        return await self.run(
            desc, x, out=out, backend=backend, device=device, feature_level=feature_level, progress=progress
        )

    async def resample(
        self,
        x: NDArray[Scalar],
        *,
        sizes: int | Sequence[int] | None = None,
        scales: float | Sequence[float] | None = None,
        axes: int | Sequence[int] | None = None,
        mode: Mode = "linear",
        antialias: bool = False,
        out: NDArray[Scalar] | None = None,
        backend: str | None = None,
        device: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> NDArray[Scalar]:
        """As `Client.resample`."""
        plan, source, target = resample_arrays(
            x, out, sizes=sizes, scales=scales, axes=axes, mode=mode, antialias=antialias
        )
        y = await self.run(plan.desc, source, out=target, backend=backend, device=device, progress=progress)
        return y.reshape(plan.output_shape) if out is None else out

    async def onnx(
        self,
        op_type: str,
        *inputs: Any,
        opset: int = NEWEST_OPSET,
        out: NDArray[Any] | None = None,
        backend: str | None = None,
        device: int | None = None,
        progress: Callable[[Progress], None] | None = None,
        **attributes: Any,
    ) -> NDArray[Any]:
        """As `Client.onnx`."""
        node = onnx_node(op_type, inputs, opset, attributes)
        return await self.run(node, inputs[0], out=out, backend=backend, device=device, progress=progress)

    async def run(
        self,
        desc: Subject,
        inputs: TensorData | Mapping[str, TensorData],
        *,
        out: NDArray[Any] | None = None,
        backend: str | None = None,
        device: int | None = None,
        feature_level: str | int | FeatureLevel | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> NDArray[Any]:
        """As `Client.run`."""
        result = await self.call(
            desc, inputs, out=out, backend=backend, device=device, feature_level=feature_level, progress=progress
        )  # fmt: skip
        return result.array

    async def call(
        self,
        desc: Subject,
        inputs: TensorData | Mapping[str, TensorData],
        *,
        out: NDArray[Any] | None = None,
        backend: str | None = None,
        device: int | None = None,
        feature_level: str | int | FeatureLevel | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Result[Any]:
        """As `Client.call`."""
        flow = exchange.compute(
            self._policy,
            desc,
            inputs,
            out=out,
            backend=backend,
            device=device,
            feature_level=feature_level,
            progress=progress,
        )
        return await self._run(flow)

    def stream(
        self,
        desc: Subject,
        inputs: TensorData | Mapping[str, TensorData],
        *,
        backend: str | None = None,
        device: int | None = None,
        feature_level: str | int | FeatureLevel | None = None,
        progress: Callable[[Progress], None] | None = None,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
    ) -> AsyncGenerator[memoryview, None]:
        """As `Client.stream`, for `async for`.

        Python closes an asynchronous generator that is left early only some time later. To close the connection at
        once: `async with contextlib.aclosing(tp.stream(...)) as blocks`.
        """
        flow = exchange.stream(
            self._policy, desc, inputs,
            block_bytes=block_bytes, backend=backend, device=device, feature_level=feature_level, progress=progress,
        )  # fmt: skip
        return self._stream(flow)

    # ---- questions ---------------------------------------------------------------------------------------------------

    async def validate(
        self, desc: Subject | Mapping[str, Any], *, feature_level: str | int | FeatureLevel | None = None
    ) -> Validation:
        """As `Client.validate`."""
        return await self._run(exchange.validate(self._policy, desc, feature_level=feature_level))

    async def operators(self) -> Mapping[str, Any]:
        """As `Client.operators`."""
        return await self._run(exchange.document(self._policy, "/v1/operators"))

    async def operator(self, name: str) -> Mapping[str, Any]:
        """As `Client.operator`."""
        return await self._run(exchange.document(self._policy, "/v1/operators", name))

    async def devices(self) -> Mapping[str, Any]:
        """As `Client.devices`."""
        return await self._run(exchange.document(self._policy, "/v1/devices"))

    async def limits(self) -> Mapping[str, Any]:
        """As `Client.limits`."""
        return await self._run(exchange.document(self._policy, "/v1/limits"))

    async def live(self) -> bool:
        """As `Client.live`."""
        return await self._run(exchange.health("/v2/health/live"))

    async def ready(self) -> bool:
        """As `Client.ready`."""
        return await self._run(exchange.health("/v2/health/ready"))

    # ---- driving -----------------------------------------------------------------------------------------------------

    async def _run(self, flow: Flow[T]) -> T:
        async with _AsyncTalk(self._transport) as talk:
            try:
                step = next(flow)
                while True:
                    step = resume(flow, await talk.perform(step))
            except StopIteration as done:
                return done.value

    async def _stream(self, flow: Flow[None]) -> AsyncGenerator[memoryview, None]:
        async with _AsyncTalk(self._transport) as talk:
            try:
                step = next(flow)
                while True:
                    if isinstance(step, HandOut):
                        yield step.block
                    step = resume(flow, await talk.perform(step))
            except StopIteration:
                return


class _AsyncTalk:
    """`_Talk` for asyncio."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._answer: AsyncAnswer | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._hang_up()

    async def _hang_up(self) -> None:
        if self._answer is not None:
            answer, self._answer = self._answer, None
            await answer.close()

    async def perform(self, step: Step) -> object:
        try:
            return await self._perform(step)
        except ConnectionProblem as problem:
            return problem

    async def _perform(self, step: Step) -> object:
        match step:
            case Read(into):
                assert self._answer is not None
                return await self._answer.read_into(into)
            case Send(request):
                self._answer = await self._transport.send(request)
                return self._answer.head
            case Wait(seconds):
                await self._hang_up()
                await asyncio.sleep(seconds)
            case HandOut():
                pass  # whoever drives the flow has handed the block out
        return None
