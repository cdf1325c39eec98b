"""JSON Web Tokens (RFC 7519) in the place of API keys: signed by an issuer whose public keys are in a file (JWKS).

A token says which key signed it (`kid`); the file says which algorithms that key may be used with, and the token's word
must be one of them (RFC 8725, section 3.1). All of them have a public key, so a token that names HS256 is never checked
with a public key as its secret, and `none` is not accepted. Keys in tokens, and addresses of keys, are not looked at.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from tensorpost.bodies.strict_json import read_json
from tensorpost.values.extras import install_command
from tensorpost.values.problems import InvalidJson, InvalidParameter

from ...settings import Settings, setting_variable
from .api_keys import KeyScope
from .watched_file import WatchedFile, read_trusted

LONGEST_TOKEN = 8192  # characters; issuers that write groups into tokens reach some thousand
LEEWAY_SECONDS = 30
"""How far the issuer's clock may be from ours, in either direction."""
_LONGEST_SUBJECT = 200
_LEAST_RSA_BITS = 2048  # NIST SP 800-131A
_KIND = "JWKS file"

_ALGORITHMS: Mapping[tuple[str, str | None], tuple[str, ...]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""The signature algorithms that are taken, by kind of key and curve (RFC 7518, section 3.1; RFC 8037, section 3.1)."""


class InvalidToken(Exception):
    """Why a token is not valid, in words that hold nothing of it but the names of its claims."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key of the issuer.

    Attributes:
        id: its `kid`; None if it has none.
        algorithms: the algorithms that its signatures may be made by.
    """

    id: str | None
    algorithms: tuple[str, ...]
    public: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Token:
    """A token that is valid until it expires, with the members of an API key; it has no quotas.

    Attributes:
        name: `jwt:` and its subject, so that nobody takes it for an API key's name.
        expires: time from which it is refused, with the leeway.
    """

    name: str
    scopes: tuple[KeyScope, ...]
    expires: datetime
    requests_per_minute: int | None = None
    bytes_per_minute: int | None = None


class TokenReader:
    """Checks tokens by the issuer's keys, which are read again when their file has changed.

    Raises:
        InvalidParameter: PyJWT or cryptography is not installed.
    """

    def __init__(self, path: Path, issuer: str, audience: str, prefix: str) -> None:
        try:
            import jwt

            importlib.import_module("cryptography")  # which PyJWT misses only when a key is read
        except ModuleNotFoundError as error:
            wanted = setting_variable("jwks_file")
            raise InvalidParameter(f"{wanted} needs {error.name}: {install_command('jwt')}") from None
        self._jwt = jwt
        self._file = WatchedFile[tuple[IssuerKey, ...]](path, _KIND, read_issuer_keys, ())
        self._issuer, self._audience, self._prefix = issuer, audience, prefix
        self._keys: tuple[IssuerKey, ...] = ()

    @classmethod
    def from_settings(cls, settings: Settings) -> TokenReader | None:
        """The reader that the settings ask for; None if they name no file.

        Raises:
            InvalidParameter: a setting is missing beside others, or a package.
        """
        values = {name: getattr(settings, name) for name in ("jwks_file", "jwt_issuer", "jwt_audience")}
        missing = [setting_variable(name) for name, value in values.items() if not value]
        if len(missing) == len(values):
            return None
        if missing:
            raise InvalidParameter(f"tokens need {' and '.join(missing)} too: file, issuer and audience go together")
        path, issuer, audience = values.values()
        return cls(path, issuer, audience, settings.jwt_scope_prefix)

    def open(self) -> None:
        """Read the keys. Before that no token is valid.

        Raises:
            InvalidParameter: the file is not there or cannot be used.
        """
        self._keys = self._file.read()

    def has_changed(self, now: float) -> bool:
        """Whether other keys hold from now on, so that a token that was valid may not be valid any more."""
        keys = self._file.changed(now)
        if keys is None:
            return False
        self._keys = keys
        return True

    def read(self, sent: bytes) -> Token:
        """Check a token: signature, issuer, audience, times, subject.

        Raises:
            InvalidToken: it is not valid.
        """
        jwt = self._jwt
        if len(sent) > LONGEST_TOKEN:
            raise InvalidToken(f"this token has more than {LONGEST_TOKEN:,} characters")
        try:
            head = jwt.get_unverified_header(sent)
            key = self._key(head.get("kid"))
            claims = jwt.decode(
                sent, key.public, list(key.algorithms), issuer=self._issuer, audience=self._audience,
                leeway=LEEWAY_SECONDS, options={"require": ["exp", "iss", "aud", "sub"]},
            )  # fmt: skip
        except jwt.ExpiredSignatureError:
            raise InvalidToken("the token has expired; get a new one from its issuer") from None
        except jwt.ImmatureSignatureError:
            raise InvalidToken("the token is not valid yet (nbf or iat); is a clock wrong?") from None
        except jwt.InvalidAudienceError:
            raise InvalidToken(
                f"the token is for another audience (aud); this server requires {self._audience}"
            ) from None
        except jwt.InvalidIssuerError:
            raise InvalidToken(f"the token is from another issuer (iss); this server requires {self._issuer}") from None
        except jwt.MissingRequiredClaimError as error:
            raise InvalidToken(f"the token has no claim {error.claim}") from None
        except jwt.InvalidAlgorithmError:
            raise InvalidToken("the algorithm of the token (alg) does not fit its key") from None
        except jwt.InvalidSignatureError:
            raise InvalidToken("the signature of the token does not match its key") from None
        except (InvalidToken, MemoryError):
            raise
        except Exception:  # noqa: BLE001 # PyJWT lets through what numbers, texts and cryptography raise
            raise InvalidToken("this is not a signed JSON Web Token") from None
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= _LONGEST_SUBJECT:
            raise InvalidToken(f"the token's subject (sub) is not a text of 1 to {_LONGEST_SUBJECT} characters")
        for claim in ("exp", "nbf", "iat"):
            if type(claims.get(claim, 0)) not in (int, float):  # PyJWT takes texts of digits for numbers
                raise InvalidToken(f"the token's time ({claim}) is not a number of seconds (RFC 7519, section 2)")
        return Token(f"jwt:{subject}", self._scopes(claims), _expiry(claims["exp"]))

    def _key(self, id_: object) -> IssuerKey:
        """The key that a token names; the only one there is, if it names none."""
        keys = [key for key in self._keys if key.id == id_] if id_ is not None else [*self._keys]
        if len(keys) != 1:
            raise InvalidToken(
                "the token is signed by a key that is not in the file of this server (kid)"
                if id_ is not None
                else "the token does not say which key it is signed by (kid)"
            )
        return keys[0]

    def _scopes(self, claims: Mapping[str, Any]) -> tuple[KeyScope, ...]:
        """Ours among the claims `scope` (RFC 8693, section 4.2) and `scp`, each a list or a text with spaces."""
        words: set[str] = set()
        for claim in ("scope", "scp"):
            value = claims.get(claim, ())
            listed: Sequence[object] = value.split() if isinstance(value, str) else value if _is_list(value) else ()
            words.update([word for word in listed if isinstance(word, str)])
        ours: tuple[KeyScope, ...] = ("run", "admin", "graphs", "tensors")
        return tuple([scope for scope in ours if self._prefix + scope in words])


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


def _expiry(exp: float) -> datetime:
    try:
        return datetime.fromtimestamp(exp + LEEWAY_SECONDS, UTC)
    except (OverflowError, ValueError, OSError):
        raise InvalidToken("the token's expiry (exp) is not a time") from None


def read_issuer_keys(path: Path) -> tuple[IssuerKey, ...]:
    """The keys in a JWKS file (RFC 7517, section 5). Keys for other uses, and of other kinds, are left out.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidParameter: it cannot be read, others may write to it, it is not a JWKS, has no key for signatures, a
            secret key, a weak one, or an id twice.
    """
    where = f"the {_KIND} {path}"
    text = read_trusted(path, _KIND)
    try:
        document: object = read_json(text)
    except InvalidJson as error:
        raise InvalidParameter(f"{where} is not JSON: {error.detail}") from None
    members = cast("dict[str, object]", document).get("keys") if isinstance(document, dict) else None
    if not isinstance(members, list):
        raise InvalidParameter(f"{where} is not a JWKS: an object with a list `keys`")
    keys: list[IssuerKey] = []
    for number, member in enumerate(cast("Sequence[object]", members), 1):
        if not isinstance(member, dict):
            raise InvalidParameter(f"{where}: key {number} is not an object")
        if (key := _read_key(cast("Mapping[str, Any]", member), f"{where}: key {number}")) is not None:
            keys.append(key)
    if not keys:
        raise InvalidParameter(f"{where} has no key that can verify signatures")
    if len({key.id for key in keys}) < len(keys):
        raise InvalidParameter(f"{where} has two keys with the same id (kid)")
    return tuple(keys)


def _read_key(member: Mapping[str, Any], where: str) -> IssuerKey | None:
    from jwt import PyJWK, PyJWTError

    kind = member.get("kty")
    if kind == "oct" or "d" in member:
        raise InvalidParameter(f"{where} is secret; the file must have the issuer's public keys only")
    algorithms = _ALGORITHMS.get((str(kind), None if kind == "RSA" else member.get("crv")))
    if algorithms is None or member.get("use", "sig") != "sig" or "verify" not in member.get("key_ops", ["verify"]):
        return None
    if (named := member.get("alg")) is not None:
        algorithms = tuple([algorithm for algorithm in algorithms if algorithm == named])
        if not algorithms:
            return None
    id_ = member.get("kid")
    if id_ is not None and not isinstance(id_, str):
        raise InvalidParameter(f"{where}: kid is {json.dumps(id_)[:40]}; it must be a text")
    try:
        public = PyJWK(dict(member), algorithms[0])
    except (PyJWTError, ValueError, TypeError) as error:
        raise InvalidParameter(f"{where} is not a valid {kind} key: {error}") from None
    if kind == "RSA" and public.key.key_size < _LEAST_RSA_BITS:
        raise InvalidParameter(f"{where} has {public.key.key_size} bits; it must have at least {_LEAST_RSA_BITS}")
    return IssuerKey(id_, algorithms, public.key)
