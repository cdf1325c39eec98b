"""JSON Web Tokens in the place of keys. They are made by hand from RFC 7515, so that no library vouches for itself."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from tests.support.http_app import (
    NPY,
    AppClient,
    assert_problem,
    eventually,
    http_app,
    npy_bytes,
    request_bytes,
    serving,
)

from tensorpost.values.problems import InvalidParameter
from tensorpost_server import commands
from tensorpost_server.http.access import access_control, watched_file
from tensorpost_server.http.access.json_web_tokens import read_issuer_keys
from tensorpost_server.http.observability.access_log import AccessLog, json_line

TILE = "/v1/operators/tile?repeats=2"
ISSUER, AUDIENCE = "https://issuer.example/", "tensors"
RSA_KEY = rsa.generate_private_key(65537, 2048)
OTHER_RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int, size: int | None = None) -> str:
    return text(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


def rsa_jwk(key: rsa.RSAPrivateKey, **members: Any) -> dict[str, Any]:
    public = key.public_key().public_numbers()
    return {"kty": "RSA", "kid": "r", "n": number(public.n), "e": number(public.e), **members}


def ec_jwk(**members: Any) -> dict[str, Any]:
    public = EC_KEY.public_key().public_numbers()
    return {"kty": "EC", "crv": "P-256", "kid": "e", "x": number(public.x, 32), "y": number(public.y, 32), **members}


LIFETIME = 3600  # seconds, longer than all tests take: some tokens are made when the tests are collected


def ed_jwk(**members: Any) -> dict[str, Any]:
    raw = ED_KEY.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return {"kty": "OKP", "crv": "Ed25519", "kid": "o", "x": text(raw), **members}


def claims(**changed: Any) -> dict[str, Any]:
    usual = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "anna",
        "exp": time.time() + LIFETIME,
        "scope": "openid tensorpost:run",
    }
    return {name: value for name, value in {**usual, **changed}.items() if value is not None}


def sign(algorithm: str, data: bytes, key: Any) -> bytes:
    if algorithm == "none":
        return b""
    if algorithm == "HS256":
        return hmac.digest(key, data, "sha256")
    if algorithm == "RS256":
        return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    if algorithm == "PS256":
        return key.sign(data, padding.PSS(padding.MGF1(hashes.SHA256()), hashlib.sha256().digest_size), hashes.SHA256())
    if algorithm == "ES256":
        r, s = decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")
    return key.sign(data)


def token(
    said: Mapping[str, Any] | None = None,
    algorithm: str = "RS256",
    key: Any = RSA_KEY,
    kid: Any = "r",
    **head: Any,
) -> str:
    header = {"typ": "JWT", "alg": algorithm, **({} if kid is None else {"kid": kid}), **head}
    parts = [text(json.dumps(part).encode()) for part in (header, claims() if said is None else said)]
    signed = ".".join(parts)
    return f"{signed}.{text(sign(algorithm, signed.encode(), key))}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    write(path, rsa_jwk(RSA_KEY), ec_jwk(), ed_jwk())
    return path


def write(path: Path, *keys: Mapping[str, Any]) -> None:
    path.write_text(json.dumps({"keys": keys}))


def app_with(file: Path, **more: Any) -> Any:
    return http_app(jwks_file=file, jwt_issuer=ISSUER, jwt_audience=AUDIENCE, **more)


def run(app: AppClient, bearer: str) -> Any:
    return app.post(TILE, npy_bytes([1, 2]), {**NPY, "authorization": f"Bearer {bearer}"})


@pytest.mark.parametrize(
    ("algorithm", "key", "kid"),
    [("RS256", RSA_KEY, "r"), ("PS256", RSA_KEY, "r"), ("ES256", EC_KEY, "e"), ("EdDSA", ED_KEY, "o")],
)
def test_tokens_let_in(file: Path, algorithm: str, key: Any, kid: str):
    with app_with(file) as app:
        signed = token(algorithm=algorithm, key=key, kid=kid)
        assert [run(app, signed).status_code for _ in range(2)] == [200, 200]
        assert_problem(run(app, signed[:-6] + ("A" * 6)), 401, "unauthenticated")
        assert app.get("/v2/health/live").status_code == 200
        assert_problem(app.get("/v1/limits"), 401, "unauthenticated")


PUBLIC_PEM = RSA_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
REFUSED: Mapping[str, tuple[str, str]] = {
    "no algorithm": (token(algorithm="none"), "algorithm"),
    "no algorithm, written otherwise": (token(algorithm="none", alg="None"), "algorithm"),
    "the public key as a secret": (token(algorithm="HS256", key=PUBLIC_PEM), "algorithm"),
    "the public key's number as a secret": (token(algorithm="HS256", key=rsa_jwk(RSA_KEY)["n"].encode()), "algorithm"),
    "a key for another algorithm": (token(algorithm="ES256", key=EC_KEY, kid="r"), "algorithm"),
    "another one's key": (token(key=OTHER_RSA_KEY), "signature"),
    "a key in the token": (token(key=OTHER_RSA_KEY, jwk=rsa_jwk(OTHER_RSA_KEY)), "signature"),
    "a key elsewhere": (token(key=OTHER_RSA_KEY, kid="x", jku="http://127.0.0.1:9/jwks"), "not in the file"),
    "an unknown key": (token(kid="x"), "not in the file"),
    "no key named": (token(kid=None), "does not say which key"),
    "critical fields": (token(crit=["b64"], b64=False), "not a signed JSON Web Token"),
    "another audience": (token(claims(aud="others")), "audience"),
    "other audiences": (token(claims(aud=["others", "more"])), "audience"),
    "an audience within another one's name": (token(claims(aud="tensors-admin")), "audience"),
    "no audience": (token(claims(aud=None)), "aud"),
    "another issuer": (token(claims(iss="https://issuer.example/evil")), "issuer"),
    "no issuer": (token(claims(iss=None)), "iss"),
    "no expiry": (token(claims(exp=None)), "exp"),
    "expired": (token(claims(exp=time.time() - 60)), "expired"),
    "not yet": (token(claims(nbf=time.time() + 6000)), "not valid yet"),
    "made tomorrow": (token(claims(iat=time.time() + 86_400)), "not valid yet"),
    "an expiry that is none": (token(claims(exp="soon")), "not a signed JSON Web Token"),
    "an expiry without end": (token(claims(exp=float("inf"))), "not a signed JSON Web Token"),
    "a list as time": (token(claims(nbf=[1])), "not a signed JSON Web Token"),
    "a list as issue time": (token(claims(iat=[1])), "not a signed JSON Web Token"),
    "a list as issuer": (token(claims(iss=[ISSUER])), "issuer|not a signed"),
    "an object as audience": (token(claims(aud={AUDIENCE: 1})), "audience"),
    "an algorithm that is a list": (token(alg=["RS256"]), "algorithm|not a signed"),
    "a head nested deeply": (f"{text(b'[' * 4000)}.e30.AA", "not a signed JSON Web Token"),
    "an expiry beyond time": (token(claims(exp=10**30)), "not a time"),
    "no subject": (token(claims(sub=None)), "sub"),
    "an empty subject": (token(claims(sub="")), "subject"),
    "a number as subject": (token(claims(sub=7)), "sub|not a signed"),
    "a long subject": (token(claims(sub="x" * 1000)), "subject"),
    "a list as key": (token(kid=["r"]), "not a signed|not in the file"),
    "claims that are none": (token([1, 2]), "not a signed JSON Web Token"),  # pyright: ignore[reportArgumentType] # on purpose
    "three dots of nothing": ("..", "not a signed JSON Web Token"),
    "too long": (token(claims(more="x" * 9000)), "more than 8,192 characters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_tokens_are_401(file: Path, name: str):
    sent, said = REFUSED[name]
    with app_with(file) as app:
        answer = run(app, sent)
    problem = assert_problem(answer, 401, "unauthenticated")
    assert re.search(said, problem["detail"]), problem["detail"]
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert not any(part and part in answer.text for part in sent.split("."))


@pytest.mark.parametrize(
    ("said", "scopes"),
    [
        ({"scope": "tensorpost:run"}, ("run",)),
        ({"scope": "tensorpost:admin tensorpost:run"}, ("run", "admin")),
        ({"scope": None, "scp": ["tensorpost:admin", 7]}, ("admin",)),
        ({"scope": "run admin tensorpost:running"}, ()),
        ({"scope": None}, ()),
        ({"scope": {"tensorpost:run": True}}, ()),
    ],
    ids=str,
)
def test_scopes(file: Path, said: Mapping[str, Any], scopes: tuple[str, ...]):
    sent = token(claims(**said))
    with app_with(file) as app:
        answer, metrics = run(app, sent), app.get("/metrics", headers={"authorization": f"Bearer {sent}"})
        assert answer.status_code == (200 if "run" in scopes else 403)
        assert metrics.status_code == (200 if "admin" in scopes else 403)
        assert app.get("/v1/limits", headers={"authorization": f"Bearer {sent}"}).status_code == 200
    if "run" not in scopes:
        assert_problem(answer, 403, "forbidden")


def test_a_prefix_of_the_issuers_choice(file: Path):
    with app_with(file, jwt_scope_prefix="api://tensors/") as app:
        assert run(app, token(claims(scope="api://tensors/run"))).status_code == 200
        assert run(app, token()).status_code == 403


def test_keys_rotate_without_a_restart(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watched_file, "SECONDS_BETWEEN_LOOKS", 0)
    old, new = token(), token(key=OTHER_RSA_KEY, kid="new")
    with app_with(file) as app:
        assert [run(app, sent).status_code for sent in (old, new)] == [200, 401]
        write(file, rsa_jwk(RSA_KEY), rsa_jwk(OTHER_RSA_KEY, kid="new"))
        assert [run(app, sent).status_code for sent in (old, new)] == [200, 200]
        write(file, rsa_jwk(OTHER_RSA_KEY, kid="new"))
        assert [run(app, sent).status_code for sent in (old, new)] == [401, 200]
        file.write_text("{")  # half written: the keys from before stay
        assert [run(app, sent).status_code for sent in (old, new)] == [401, 200]
        file.unlink()
        assert run(app, new).status_code == 401


def test_a_token_ends_between_two_replays(file: Path, monkeypatch: pytest.MonkeyPatch):
    class Later:
        offset = 0.0
        monotonic = staticmethod(time.monotonic)

        def time(self) -> float:
            return time.time() + self.offset

    clock = Later()
    monkeypatch.setattr(access_control, "time", clock)
    call = request_bytes("POST", TILE, npy_bytes([1, 2]), {**NPY, "authorization": f"Bearer {token()}"})
    settings = {"jwks_file": file, "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}
    with serving(**settings) as server, server.wire() as wire:

        def status() -> int:
            wire.send(call)
            return wire.answer().status

        assert [status() for _ in range(4)] == [200] * 4
        clock.offset = LIFETIME + 29
        assert status() == 200
        clock.offset = LIFETIME + 31  # the issuer's clock may be half a minute behind ours
        assert status() == 401


def test_the_caller_is_the_subject_and_no_api_key_of_that_name(file: Path, tmp_path: Path):
    keys, lines = tmp_path / "keys.jsonl", list[str]()
    anna = commands.add_key(keys, "anna")
    with app_with(file, keys_file=keys) as app:
        app.service.observe_by(AccessLog(json_line, lines.append))
        for bearer in (anna, token(), token(claims(sub="a\nb"))):
            assert run(app, bearer).status_code == 200
        app.service.observe_by(None)
    eventually(lambda: bool(lines), "the lines are written")
    assert [json.loads(line)["caller"] for line in "".join(lines).splitlines()] == ["anna", "jwt:anna", "jwt:a\\nb"]


# ---- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not JSON"),
        ("[]", "is not a JWKS"),
        ('{"keys": {}}', "is not a JWKS"),
        ('{"keys": []}', "no key that can verify"),
        ('{"keys": [1]}', "key 1 is not an object"),
        ({"kty": "oct", "k": "AAAA"}, "key 1 is secret"),
        (rsa_jwk(RSA_KEY, d="AAAA"), "key 1 is secret"),
        (rsa_jwk(rsa.generate_private_key(65537, 1024)), "1024 bits"),  # on purpose
        ({"kty": "RSA", "n": "!", "e": "AQAB"}, "not a valid RSA key"),
        (ec_jwk(y=number(1, 32)), "not a valid EC key"),
        (rsa_jwk(RSA_KEY, kid=7), "kid is 7"),
        (rsa_jwk(RSA_KEY, use="enc"), "no key that can verify"),
        (rsa_jwk(RSA_KEY, alg="RSA-OAEP"), "no key that can verify"),
        (rsa_jwk(RSA_KEY, alg="HS256"), "no key that can verify"),
        (ec_jwk(crv="secp256k1"), "no key that can verify"),
    ],
)
def test_a_file_that_is_wrong_stops_the_start(file: Path, content: Any, said: str):
    file.write_text(content if isinstance(content, str) else json.dumps({"keys": [content]}))
    with pytest.raises(InvalidParameter, match=said), app_with(file):
        pass


def test_two_keys_of_one_id_stop_the_start(file: Path):
    write(file, rsa_jwk(RSA_KEY), rsa_jwk(OTHER_RSA_KEY))
    with pytest.raises(InvalidParameter, match="two keys with the same id"):
        read_issuer_keys(file)


def test_a_key_with_an_algorithm_is_for_that_one_only(file: Path):
    write(file, rsa_jwk(RSA_KEY, alg="PS256"))
    with app_with(file) as app:
        assert run(app, token(algorithm="PS256")).status_code == 200
        assert_problem(run(app, token(algorithm="RS256")), 401, "unauthenticated")


def test_an_only_key_needs_no_name(file: Path):
    jwk = rsa_jwk(RSA_KEY)
    del jwk["kid"]
    write(file, jwk)
    with app_with(file) as app:
        assert run(app, token(kid=None)).status_code == 200


@pytest.mark.parametrize("missing", ["jwks_file", "jwt_issuer", "jwt_audience"])
def test_settings_go_together(file: Path, missing: str):
    settings = {"jwks_file": file, "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}
    del settings[missing]
    with pytest.raises(InvalidParameter, match=f"TENSORPOST_{missing.upper()}"), http_app(**settings):
        pass


WRONG_TYPES: tuple[Any, ...] = (
    "9999999999", "", True, [], [1], {}, {"a": 1}, None, 1e400, float("nan"), -1, 10**30, "\ud800", [["x"] * 3],
)  # fmt: skip


@pytest.mark.parametrize(
    "claim", ["exp", "nbf", "iat", "iss", "aud", "sub", "jti", "scope", "scp", "kid", "alg", "typ"]
)
def test_a_claim_of_a_wrong_type_is_answered_by_name(file: Path, claim: str):
    """Signed by the issuer itself, which may be wrong too; RFC 7519, section 4.1, says of what type each claim is."""
    in_head = claim in ("kid", "alg", "typ")
    with app_with(file) as app:
        for value in WRONG_TYPES:
            sent = token(**{"kid": "r", claim: value}) if in_head else token({**claims(), claim: value})
            answer = run(app, sent)
            assert answer.status_code in (200, 401, 403), (value, answer.text)
            if claim in ("exp", "nbf", "iat") and type(value) is not int:
                assert answer.status_code == 401, value
                said = answer.json()["detail"]
                assert claim in said or "not a signed JSON Web Token" in said or "expired" in said, (value, said)
