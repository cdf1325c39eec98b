"""What both clients are made of: where calls go, how they travel, and how often they are repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ._checks import headers_of, shown, text, whole_number
from ._connection_pool import ConnectionPool
from ._options import Limits, Timeout
from ._origin import Origin
from ._retries import RetryPolicy
from ._runtime import Deadline, Runtime
from ._socket_sender import Sender, SocketSender
from .problems import InvalidParameter, TensorpostError

if TYPE_CHECKING:  # for annotations only: it takes long to load, and only https needs it
    import ssl

__all__ = ["DEFAULT_BLOCK_BYTES", "DEFAULT_LIMITS", "DEFAULT_RETRIES", "DEFAULT_URL", "NO_HEADERS", "Session"]

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_RETRIES = 2
DEFAULT_LIMITS = Limits()
DEFAULT_BLOCK_BYTES = 1 << 20
NO_HEADERS: Mapping[str, str] = {}
_OURS: Mapping[str, str] = {"accept-encoding": "identity", "user-agent": "tensorpost"}

T = TypeVar("T")


class Session:
    """A client's way to its server, made from the arguments of `Client`.

    Attributes:
        origin: the server.
        sender: sends requests: over sockets, or over httpx for a proxy and for a caller's own httpx client.

    Raises:
        InvalidParameter: an argument is malformed.
    """

    def __init__(
        self,
        runtime: Runtime,
        base_url: str,
        timeout: float | Timeout | None,
        limits: Limits,
        retries: int,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | bool,
        uds: str | None,
        http_client: Any,
    ) -> None:
        text("base_url", base_url, f"a URL, for instance {DEFAULT_URL!r}")
        self.policy = RetryPolicy(whole_number("retries", retries, 0))
        if not isinstance(cast("object", limits), Limits):
            raise InvalidParameter(
                f"limits is {shown(limits)}; it must be tensorpost.Limits, for instance Limits(max_connections=10)"
            )
        if uds is not None:
            text("uds", uds, "the path of a Unix socket as a text, or None")
        if not isinstance(cast("object", tls), bool):
            import ssl

            if not isinstance(tls, ssl.SSLContext):
                raise InvalidParameter(f"tls is {shown(tls)}; it must be an ssl.SSLContext, True or False")
        every = {**_OURS, **headers_of(headers)}
        self.origin = Origin.parse(base_url, headers=every, timeout=Timeout.of(timeout), tls=tls, uds=uds)
        self._runtime = runtime
        self.sender: Sender
        if http_client is not None and (uds is not None or tls is not True or limits is not DEFAULT_LIMITS):
            raise InvalidParameter("limits, tls and uds are settings of the httpx client that is given as http_client")
        proxy = None if http_client is not None else self.origin.proxy()
        if http_client is None and proxy is None:
            self.sender = SocketSender(self.origin, ConnectionPool(runtime, limits))
        else:  # httpx takes long to load
            from ._httpx_sender import HttpxSender

            self.sender = HttpxSender(self.origin, limits, runtime, proxy, http_client)

    async def repeated(self, attempt: Callable[[Deadline], Awaitable[T]]) -> T:
        """What an attempt gives; it is repeated while its errors may pass and there is time.

        Raises:
            TensorpostError: the error of the last attempt.
        """
        deadline = Deadline(self.origin.timeout.total)
        retry, waited = 1, 0.0
        while True:
            try:
                return await attempt(deadline)
            except TensorpostError as error:
                wait = self.policy.wait_before(retry, error, waited)
                if wait is None or not deadline.allows(wait):
                    raise
            await self._runtime.sleep(wait)
            retry, waited = retry + 1, waited + wait
