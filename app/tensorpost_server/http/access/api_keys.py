"""API keys and the file that holds them: one JSON object a line, with the SHA-256 of each key and never the key itself.

A key is 256 random bits, so a plain hash keeps it: nobody can try 2^256 of them, and a slow password hash would cost
every request what it costs an attacker. Keys are looked up in a dictionary by the hash of what the caller presented.
That look-up is not a comparison with a secret in the sense of `hmac.compare_digest`: what a caller can vary is the
input of SHA-256, and to learn a stored hash from the time of the look-up, byte by byte, takes inputs whose hashes begin
with chosen bytes; the stored hash, once learned, is of no use without an input that has it. The time does not depend on
the number of keys, or on which one it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from tensorpost.bodies.strict_json import read_json
from tensorpost.values.problems import InvalidJson, InvalidParameter

from .watched_file import WatchedFile, cannot_use, read_trusted

KEY_PREFIX = "tp_"
"""What keys begin with, so that scanners for secrets can find one that was published by mistake."""
LONGEST_KEY = 128  # characters; ours have 46
_KIND = "keys file"

KeyScope = Literal["run", "admin", "graphs", "tensors"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class ApiKey(BaseModel):
    """What is kept about a key: a line of the file.

    Attributes:
        name: the holder's name in logs and metrics; unique in the file.
        sha256: SHA-256 of the key, 64 hexadecimal digits.
        scopes: `run` computes, `admin` reads what is about other callers.
        created: time at which it was made.
        expires: time from which it is refused; None for never.
        requests_per_minute: its rate; None for any. A minute's worth may come at once. A graph
            counts as many as it has nodes.
        bytes_per_minute: limit of request and response bodies together; None for any. A request begins while something
            is left, and what it takes beyond that is waited for by the next one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Name
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    scopes: Annotated[tuple[KeyScope, ...], Field(min_length=1)]
    created: AwareDatetime
    expires: AwareDatetime | None = None
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    bytes_per_minute: Annotated[int, Field(ge=1)] | None = None

    def has_expired(self, now: datetime) -> bool:
        """Whether it is refused at this time."""
        return self.expires is not None and now >= self.expires


def new_key() -> str:
    """A new key: 256 random bits in base64url (RFC 4648, section 5), after a prefix."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def digest(key: bytes) -> str:
    """What is kept of a key: its SHA-256 as hexadecimal digits."""
    return hashlib.sha256(key).hexdigest()


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """The keys in a file, in its order.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidParameter: it cannot be read, others may write to it, it is too large, a line is not a key, or a name or
            hash stands twice.
    """
    text = read_trusted(path, _KIND)
    keys: dict[str, ApiKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            key = _read_line(line, f"line {number} of the keys file {path}")
            if key.name in keys:
                raise InvalidParameter(f"line {number} of the keys file {path}: the name {key.name} occurs twice")
            keys[key.name] = key
    if len({key.sha256 for key in keys.values()}) < len(keys):
        raise InvalidParameter(f"the keys file {path} has the same hash under two names")
    return tuple(keys.values())


def write_keys(path: Path, keys: Sequence[ApiKey]) -> None:
    """Replace the file by one with these keys, in one step; its permissions stay, a new one has mode 0600.

    Raises:
        InvalidParameter: the system refuses, or another process is writing it.
    """
    lines = [json.dumps(key.model_dump(mode="json", exclude_none=True)) + "\n" for key in keys]
    new = path.with_name(f"{path.name}.new")
    try:
        # Made exclusively, it is also the lock between two commands.
        number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidParameter(
            f"another command is writing the keys file, or one was interrupted: then remove {new}"
        ) from None
    except OSError as error:
        raise cannot_use(path, _KIND, error) from None
    try:
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            before = path.stat()
            new.chmod(stat.S_IMODE(before.st_mode))
            if os.name == "posix" and (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.chown(new, before.st_uid, before.st_gid)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise cannot_use(path, _KIND, error) from None


def keys_file(path: Path) -> WatchedFile[tuple[ApiKey, ...]]:
    """A keys file that is watched."""
    hint = f"; make one: tensorpost keys add NAME --keys-file {path}"
    return WatchedFile(path, _KIND, read_keys, (), hint)


def _read_line(line: bytes, where: str) -> ApiKey:
    try:
        return ApiKey.model_validate(read_json(line))
    except InvalidJson as error:
        raise InvalidParameter(f"{where} is not JSON: {error.detail}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        member = ".".join(map(str, first["loc"])) or "it"
        raise InvalidParameter(f"{where}: {member}: {first['msg']}") from None
