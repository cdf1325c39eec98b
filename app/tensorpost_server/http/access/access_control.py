"""Who may call: API keys and tokens, their scopes and quotas, and the name of the caller.

With the setting `keys_file` or `jwks_file` every path but the health endpoints and the page at `/` wants a key, as
`Authorization: Bearer` (RFC 6750, section 2.1) or as `X-API-Key`; a token is a key that its issuer signed. Each request
gets `scope["tensorpost.caller"]`: the key's name; until one is known the caller's address, on a Unix socket `local`.

Small calls that are replayed (`replay.py`) never come here. Their HTTP heads are known byte for byte, the key in
them included, so it was checked. It is looked at again before each replay: whether the file still has it, its expiry,
its scopes and its quotas.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from tensorpost.values.problems import Forbidden, QuotaExceeded, Unauthenticated

from ...settings import Settings
from ...shared.buckets import BucketState, SharedBuckets
from ..bounded_cache import BoundedCache
from ..connection.whole_messages import (
    WHOLE_MESSAGES,
    ReceiveFunction,
    Reception,
    ReplayFunction,
    SendWhole,
    WholeMessages,
)
from ..documents.playground import PLAYGROUND_PATHS
from ..headers import FRAMING
from .api_keys import LONGEST_KEY, ApiKey, KeyScope, digest, keys_file
from .json_web_tokens import InvalidToken, Token, TokenReader

CALLER = "tensorpost.caller"
"""The key of the caller's name in the ASGI scope."""

SCOPES = "tensorpost.scopes"
"""The key of the scopes of the request's API key in the ASGI scope; not there where everybody may call."""

QUOTA = "tensorpost.quota"
"""The key of the request's `RequestQuota` in the ASGI scope, if its key has quotas."""

OPEN_PATHS = PLAYGROUND_PATHS | {"/v2/health/live", "/v2/health/ready"}
"""Paths that are answered without a key: what load balancers and containers ask, and a page to enter a key on."""
ADMIN_PATHS = ("/metrics",)
"""Paths, with all below them, that show what is about other callers too."""

_MOST_TOKENS = 1024
"""Tokens that are not checked again until they expire or the issuer's keys change: a signature takes some 100 us."""

_LOAD = re.compile(r"/v2/repository/models/[^/]+/(?:un)?load")  # which stores or deletes a graph
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/=-]+)")
_CHALLENGE = 'Bearer realm="tensorpost"'


class TokenBucket:
    """A quota of `per_minute` tokens, of which a whole minute's may be taken at once. It may be overdrawn.

    A request that takes more than there is begins if anything is left, and those after it wait until the debt is paid.
    """

    __slots__ = ("_level", "_most", "_since")

    def __init__(self, per_minute: int, now: float) -> None:
        self._most = self._level = float(per_minute)
        self._since = now

    def wait(self, now: float, taken: int = 0) -> float:
        """Seconds until there is a token; 0 if there is one.

        Args:
            now: the time.
            taken: tokens that the request which asks has taken already; they do not keep it from going on.
        """
        rate = self._most / 60
        self._level = min(self._most, self._level + (now - self._since) * rate)
        self._since = now
        return max(0.0, (1 - self._level - taken) / rate)

    def take(self, count: int) -> None:
        """Take tokens, also if there are fewer; give some back if the count is negative."""
        self._level -= count


class SharedTokenBucket(TokenBucket):
    """A quota that several processes take from; see `TokenBucket`.

    Args:
        per_minute: tokens that it gets in a minute.
        now: the time.
        buckets: where its state is.
        name: its key there.
    """

    __slots__ = ("_buckets", "_name")

    def __init__(self, per_minute: int, now: float, buckets: SharedBuckets, name: str) -> None:
        super().__init__(per_minute, now)
        self._buckets, self._name = buckets, name

    def wait(self, now: float, taken: int = 0) -> float:
        with self._buckets.lock():
            return self._wait(now, taken)

    def take(self, count: int, now: float | None = None) -> None:
        with self._buckets.lock():
            self._wait(time.monotonic() if now is None else now, 0)
            super().take(count)
            self._buckets.write(self._name, self._most, BucketState(self._level, self._since))

    def _wait(self, now: float, taken: int) -> float:
        self._level, self._since = self._buckets.read(self._name, self._most, now)
        return super().wait(max(now, self._since), taken)


class _Grant:
    """What a key allows now."""

    __slots__ = ("bytes", "expires", "has_quota", "key", "may_run", "requests")

    def __init__(self, key: ApiKey | Token, now: float, hash_: str, buckets: SharedBuckets | None) -> None:
        def bucket(per_minute: int | None, kind: str) -> TokenBucket | None:
            if per_minute is None:
                return None
            if buckets is None:
                return TokenBucket(per_minute, now)
            return SharedTokenBucket(per_minute, now, buckets, f"{kind} {hash_}")

        self.key = key
        self.expires = math.inf if key.expires is None else key.expires.timestamp()
        self.requests = bucket(key.requests_per_minute, "requests")
        self.bytes = bucket(key.bytes_per_minute, "bytes")
        self.has_quota = self.requests is not None or self.bytes is not None
        self.may_run = "run" in key.scopes

    def wait(self, now: float) -> float:
        """Seconds until the quotas allow a request; 0 if they do."""
        seconds = 0.0 if self.requests is None else self.requests.wait(now)
        return seconds if self.bytes is None else max(seconds, self.bytes.wait(now))

    def used_up(self, now: float) -> str:
        """The limits that `wait` waits for, in words."""
        key, limits = self.key, list[str]()
        if self.requests is not None and self.requests.wait(now):
            limits.append(f"{key.requests_per_minute:,} requests")
        if self.bytes is not None and self.bytes.wait(now):
            limits.append(f"{key.bytes_per_minute:,} bytes of bodies")
        return f"{' and '.join(limits)} a minute"

    def take_requests(self, count: int) -> None:
        if self.requests is not None:
            self.requests.take(count)

    def take_bytes(self, count: int) -> None:
        if self.bytes is not None:
            self.bytes.take(count)

    def exceeded(self, now: float, seconds: float) -> QuotaExceeded:
        whole = math.ceil(seconds)
        return QuotaExceeded(
            f"the key {self.key.name} has used up its {self.used_up(now)}; wait {whole:,} s",
            extra={"retry_after_seconds": whole},
        )


class RequestQuota:
    """What one request takes of its key's quotas.

    A response's bytes are reserved before they are computed, so of any number of requests at once no more than one may
    exceed the quota. What it then takes differently is corrected.
    """

    __slots__ = ("_grant", "_reserved", "_taken")

    def __init__(self, grant: _Grant) -> None:
        self._grant = grant
        self._taken = self._reserved = 0

    def compute_nodes(self, count: int) -> None:
        """Take a request for each node of a graph; `AccessControl.admit` has taken the first.

        Raises:
            QuotaExceeded: other requests have used up the quota meanwhile.
        """
        self._check(self._grant.requests, 1)
        self._grant.take_requests(count - 1)

    def announced(self, count: int) -> None:
        """Take the announced bytes of the body."""
        self._taken += count
        self._grant.take_bytes(count)

    def received(self, count: int) -> None:
        """Take bytes of the body that nothing announced.

        Raises:
            QuotaExceeded: other requests have used up the quota meanwhile.
        """
        self._check(self._grant.bytes, self._taken)
        self.announced(count)

    def reserve(self, count: int) -> None:
        """Take the bytes that the response will have, or an estimate of them.

        Raises:
            QuotaExceeded: other requests have used up the quota meanwhile.
        """
        self._check(self._grant.bytes, self._taken)
        self._reserved += count
        self.announced(count)

    def sent(self, count: int) -> None:
        """Take bytes of the response, of those that are reserved first."""
        reserved = min(self._reserved, count)
        self._reserved -= reserved
        self.announced(count - reserved)

    def end(self) -> None:
        """Give back what is reserved and was not sent; the request has ended."""
        self._grant.take_bytes(-self._reserved)
        self._reserved = 0

    def _check(self, bucket: TokenBucket | None, taken: int) -> None:
        now = time.monotonic()
        if bucket is not None and (seconds := bucket.wait(now, taken)):
            raise self._grant.exceeded(now, seconds)


class AccessControl:
    """Lets requests in by their API keys or tokens.

    Args:
        settings: `keys_file` and `jwks_file` say where the keys are; without both everybody may call.
        buckets: where several processes have their quotas; None if there is one.
    """

    __slots__ = ("_buckets", "_file", "_grants", "_settings", "_token_grants", "_tokens", "anonymous")

    def __init__(self, settings: Settings, buckets: SharedBuckets | None = None) -> None:
        self._buckets = buckets
        self._file = None if settings.keys_file is None else keys_file(settings.keys_file)
        self._tokens: TokenReader | None = None
        self.anonymous = settings.keys_file is None and settings.jwks_file is None
        self._settings = settings
        self._grants: Mapping[str, _Grant] = {}
        self._token_grants = BoundedCache[str, _Grant](_MOST_TOKENS)

    def open(self) -> None:
        """Read the keys. Before that nobody is let in.

        Raises:
            InvalidParameter: a file is not there or cannot be used, a setting of tokens is missing beside others, or
                their packages are not installed.
        """
        if self._file is not None:
            self._grant(self._file.read(), time.monotonic())
        self._tokens = TokenReader.from_settings(self._settings)
        if self._tokens is not None:
            self._tokens.open()

    def admit(
        self, scope: Scope, fields: Mapping[bytes, bytes], path: str, receive: Receive, send: Send
    ) -> tuple[Receive, Send]:
        """Let a request in, and name its caller in the scope, also if its key is known and it is refused.

        Returns:
            The channels to go on with: they count bytes if the key has a quota of them.

        Raises:
            Unauthenticated: there is no key, or one that is not or no longer valid.
            Forbidden: the key has not the scope for this path.
            QuotaExceeded: the key has used up its requests or bytes; `retry_after_seconds` says for how long.
        """
        if self.anonymous or path in OPEN_PATHS:
            return receive, send
        now = time.monotonic()
        hash_, grant = self._presented(fields, now)
        scope[CALLER], scope[SCOPES] = grant.key.name, grant.key.scopes
        _check(grant, scope["method"], path, now)
        grant.take_requests(1)
        quota = RequestQuota(grant) if grant.has_quota else None
        self._guard(hash_, quota, scope)
        if quota is None:
            return receive, send
        scope[QUOTA] = quota
        if grant.bytes is None:
            return receive, send
        length = fields.get(b"content-length", b"0")
        # A body above the limit is refused before it is read, so it does not count as a whole.
        quota.announced(min(int(length), self._settings.max_body_bytes) if length.isdigit() and len(length) < 20 else 0)
        counted = partial(_receive_counted, quota, receive) if scope[FRAMING].chunked else receive
        return counted, partial(_send_counted, quota, send)

    def caller(self, method: str, path: str, fields: Mapping[bytes, bytes]) -> str | None:
        """The name of the caller whose key these header fields present; None where everybody may call.

        Nothing is taken of its quotas: `admit` does that.

        Raises:
            Unauthenticated: there is no key that is valid; see `admit`.
            Forbidden: the key has not the scope; see `admit`.
            QuotaExceeded: the key has used up its quota; see `admit`.
        """
        if self.anonymous:
            return None
        now = time.monotonic()
        _, grant = self._presented(fields, now)
        _check(grant, method, path, now)
        return grant.key.name

    def _presented(self, fields: Mapping[bytes, bytes], now: float) -> tuple[str, _Grant]:
        """The key that the header fields present, expired or not."""
        key = _key_in(fields)
        is_token = self._tokens is not None and key.count(b".") == 2  # RFC 7515, section 7.1; no key of ours has any
        if len(key) > LONGEST_KEY and not is_token:
            raise _not_valid("this key is longer than any key here")
        hash_ = digest(key)
        grant = self._current(hash_, now)
        if grant is None and is_token:
            grant = self._grant_token(hash_, key, now)
        if grant is None:
            raise _not_valid("there is no such key here, or it was revoked; ask whoever runs this server for one")
        return hash_, grant

    def _current(self, hash_: str, now: float) -> _Grant | None:
        """What a key allows by the file as it is now, expired or not; None if it has no such key."""
        file = self._file
        if file is not None and now >= file.next_look and (keys := file.changed(now)) is not None:
            self._grant(keys, now)
        if self._tokens is None:
            return self._grants.get(hash_)
        if self._tokens.has_changed(now):
            self._token_grants.clear()
        return self._grants.get(hash_) or self._token_grants.get(hash_)

    def _grant_token(self, hash_: str, token: bytes, now: float) -> _Grant:
        """Allow what a token says that was not seen before."""
        assert self._tokens is not None
        try:
            grant = _Grant(self._tokens.read(token), now, hash_, self._buckets)
        except InvalidToken as error:
            raise _not_valid(str(error)) from None
        self._token_grants.put(hash_, grant)
        return grant

    def _grant(self, keys: tuple[ApiKey, ...], now: float) -> None:
        """Allow what these keys say. Keys that have not changed keep the state of their quotas."""
        before = self._grants
        self._grants = {
            key.sha256: known
            if (known := before.get(key.sha256)) and known.key == key
            else _Grant(key, now, key.sha256, self._buckets)
            for key in keys
        }

    def _guard(self, hash_: str, quota: RequestQuota | None, scope: Scope) -> None:
        """Let the server's extension count the response and guard its replays."""
        extensions: MutableMapping[str, Any] | None = scope.get("extensions")
        extension = extensions.get(WHOLE_MESSAGES) if extensions else None
        if extensions is not None and extension is not None:
            whole: WholeMessages = extension["whole_messages"]
            guarded = WholeMessages(whole.receive, partial(self._send_whole, whole.send, hash_, quota))
            extensions[WHOLE_MESSAGES] = {"whole_messages": guarded}

    def _send_whole(
        self, send: SendWhole, hash_: str, quota: RequestQuota | None, lines: bytes, body: bytes,
        replay: ReplayFunction | None = None, receive: ReceiveFunction | None = None,
    ) -> bool:  # fmt: skip
        if not send(
            lines, body, None if replay is None else partial(self._replay, replay, hash_),
            None if receive is None else partial(self._receive, receive, hash_),
        ):  # fmt: skip
            return False
        if quota is not None:
            quota.sent(len(body))
        return True

    def _replay(
        self, replay: ReplayFunction, hash_: str, body: bytes, address: str | None
    ) -> tuple[bytes, bytes, int] | None:
        """Replay a response if its key still allows that; else None, and the application answers with the reason."""
        grant = self._grant_of_replay(hash_)
        response = None if grant is None else replay(body, address)
        if grant is not None and grant.has_quota and response is not None:
            grant.take_requests(response[2])
            grant.take_bytes(len(body) + len(response[1]))
        return response

    def _receive(self, receive: ReceiveFunction, hash_: str, length: int, address: str | None) -> Reception | None:
        """Receive the body of a request that is replayed; its key is looked at before and after that.

        The application announces the bytes of a body to a quota before they come, so it receives those of such keys.
        """
        grant = partial(self._grant_of_replay, hash_, in_parts=True)
        if grant() is None or (reception := receive(length, address)) is None:
            return None
        return _GuardedReception(reception, grant)

    def _grant_of_replay(self, hash_: str, *, in_parts: bool = False) -> _Grant | None:
        """What a key allows whose request may be replayed now; None if it may not."""
        now = time.monotonic()
        grant = self._current(hash_, now)
        if grant is None or not grant.may_run or (grant.expires != math.inf and time.time() >= grant.expires):
            return None
        if grant.has_quota and (grant.wait(now) or (in_parts and grant.bytes is not None)):
            return None
        return grant


class _GuardedReception:
    """A `Reception` whose answer needs a key that still allows it."""

    __slots__ = ("_grant", "_reception", "end", "memory")

    def __init__(self, reception: Reception, grant: Callable[[], _Grant | None]) -> None:
        self._reception, self._grant = reception, grant
        self.memory, self.end = reception.memory, reception.end

    def answer(self) -> tuple[bytes, bytes, int] | None:
        grant = self._grant()
        response = None if grant is None else self._reception.answer()
        if grant is not None and response is not None:
            grant.take_requests(response[2])
        return response


def _check(grant: _Grant, method: str, path: str, now: float) -> None:
    """Refuse a request that a key does not allow now; see `AccessControl.admit`."""
    if time.time() >= grant.expires:
        raise _not_valid(f"the key {grant.key.name} has expired; ask whoever runs this server for a new one")
    needed = _scope_of(method, path)
    if needed is not None and needed not in grant.key.scopes:
        raise Forbidden(
            f"key {grant.key.name!r} lacks the scope {needed!r}, which {method} {path[:100]} requires",
            extra={"www_authenticate": f'{_CHALLENGE}, error="insufficient_scope", scope="{needed}"'},
        )
    if seconds := grant.wait(now):
        raise grant.exceeded(now, seconds)


def _key_in(fields: Mapping[bytes, bytes]) -> bytes:
    """The key in the header fields."""
    authorization, key = fields.get(b"authorization"), fields.get(b"x-api-key")
    if authorization is None and key is None:
        raise Unauthenticated(
            f"this server requires an API key; {Unauthenticated.SEND_KEY}",
            extra={"www_authenticate": _CHALLENGE},
        )
    if authorization is not None:
        bearer = _BEARER.fullmatch(authorization)
        if bearer is None:
            raise _not_valid("the header Authorization holds no key; it must be: Bearer KEY")
        if key is not None and key != bearer[1]:
            raise _not_valid("the headers Authorization and X-API-Key hold different keys; send one of them")
        key = bearer[1]
    assert key is not None
    return key


def _not_valid(detail: str) -> Unauthenticated:
    return Unauthenticated(detail, extra={"www_authenticate": f'{_CHALLENGE}, error="invalid_token"'})


def _scope_of(method: str, path: str) -> KeyScope | None:
    """The scope that a request needs; None if any key will do, as for catalogues and limits."""
    if any(path == admin or path.startswith(f"{admin}/") for admin in ADMIN_PATHS):
        return "admin"
    if method in ("GET", "HEAD"):
        return None
    if f"{path}/".startswith("/v1/tensors/"):
        return "tensors"
    changes = method in ("PUT", "DELETE") and path.startswith("/v1/graphs")
    return "graphs" if changes or _LOAD.fullmatch(path) else "run"


async def _receive_counted(quota: RequestQuota, receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.request":
        quota.received(len(message.get("body", b"")))
    return message


async def _send_counted(quota: RequestQuota, send: Send, message: Message) -> None:
    if message["type"] == "http.response.body":
        quota.sent(len(message.get("body", b"")))
    await send(message)
