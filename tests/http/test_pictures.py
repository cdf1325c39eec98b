"""Pictures, npz and raw bytes as bodies: what comes in, what goes out, and what is refused before memory is taken.

The oracles are Pillow and OpenCV, each of which reads what the service wrote and writes what it reads, and NumPy.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps
from tests.support.http_app import NPY, AppClient, assert_problem, http_app, npy_array, npy_bytes

TILE, ADD = "/v1/operators/tile", "/v1/operators/element_wise_add"
COPY = TILE + "?repeats=1,1,1,1"
RANDOM = np.random.default_rng(20_261_122)
COLOURS = RANDOM.integers(0, 256, (4, 6, 3), np.uint8)
PNG = {"content-type": "image/png"}


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy", max_body_bytes=1 << 20, max_image_pixels=10_000) as client:
        yield client


def saved(array: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind, **options)
    return file.getvalue()


def seen(content: bytes) -> np.ndarray:
    """The picture as any viewer shows it."""
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(ImageOps.exif_transpose(image))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# ---- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "error"), [("PNG", 0), ("WEBP", 0), ("JPEG", 16), ("AVIF", 16)])
def test_a_picture_goes_in_and_comes_out(app: AppClient, kind: str, error: int):
    """Grey, since JPEG keeps hues of blocks; light it keeps within an error, as AVIF does, the others keep all."""
    y, x = np.mgrid[:16, :32]
    picture = np.dstack([y * 5 + x * 4] * 3).astype(np.uint8)
    content = saved(picture, kind, **({"lossless": True} if kind == "WEBP" else {}))

    answer = app.post(TILE + "?repeats=1,2,3,1", content, {"content-type": f"image/{kind.lower()}"})

    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == f"image/{kind.lower()}"
    assert answer.headers["tensorpost-shape"] == "1,32,96,3"
    assert answer.headers["tensorpost-dtype"] == "uint8"
    found = seen(answer.content).astype(int)
    assert found.shape == (32, 96, 3)
    assert np.abs(found - np.tile(seen(content), (2, 3, 1))).max() <= error


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_8_and_16_bits_from_grey_to_transparent(app: AppClient, dtype: type, channels: int):
    """OpenCV keeps 16 bits of colour, which Pillow does not; its channels are blue, green, red, alpha."""
    picture = RANDOM.integers(0, np.iinfo(dtype).max + 1, (5, 7, channels)).astype(dtype)
    order = [2, 1, 0, 3][:channels] if channels > 1 else [0]
    content = cv2.imencode(".png", picture[..., order])[1].tobytes()

    tensor = app.post(COPY, content, PNG | {"accept": "application/x-npy"})
    answer = app.post(TILE + "?repeats=1,1,2,1", content, PNG)

    np.testing.assert_array_equal(npy_array(tensor.content), picture[np.newaxis], strict=True)
    found = cv2.imdecode(np.frombuffer(answer.content, np.uint8), cv2.IMREAD_UNCHANGED)
    assert found is not None
    np.testing.assert_array_equal(found.reshape(5, 14, channels)[..., order], np.tile(picture, (1, 2, 1)), strict=True)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_a_camera_is_applied(app: AppClient, orientation: int):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(COLOURS, exif=exif)
    # Writers may put the chunk behind the pixels (PNG, section 11.3.3.5), which a reader of the head must not miss.
    at = content.index(b"eXIf") - 4
    length = 12 + int.from_bytes(content[at : at + 4], "big")
    late = content[:at] + content[at + length : -12] + content[at : at + length] + content[-12:]

    for each in (content, late):
        answer = app.post(COPY, each, PNG)
        np.testing.assert_array_equal(seen(answer.content), seen(content), strict=True)


def test_layout_and_float_are_named_in_the_media_type(app: AppClient):
    body, nchw = saved(COLOURS), np.moveaxis(COLOURS, 2, 0)[np.newaxis]

    tensor = app.post(
        COPY, body, {"content-type": "image/png; layout=NCHW; dtype=float32", "accept": NPY["content-type"]}
    )
    np.testing.assert_array_equal(npy_array(tensor.content), nchw.astype(np.float32) / np.float32(255), strict=True)

    # -1 and NaN are black, 2 is white, and halves go to the even number: 0.5 / 255 to 0, 1.5 / 255 to 2.
    values = np.array([[[[-1, np.nan, 2, 1], [0.5 / 255, 1.5 / 255, 254.4 / 255, 0]]]], np.float32)
    for dtype in (np.float32, np.float16):
        headers = NPY | {"accept": "image/png; dtype=float32; layout=NCHW"}
        answer = app.post(COPY, npy_bytes(values.astype(dtype)), headers)
        assert answer.headers["tensorpost-dtype"] == dtype.__name__
        expected = [[0, 0, 255, 255], [0, 2, 254, 0]]
        if dtype is np.float32:
            assert seen(answer.content).tolist() == expected
    assert_problem(app.post(COPY, npy_bytes(values), NPY | {"accept": "image/png; layout=NCHW"}), 406, "not-acceptable")
    problem = assert_problem(app.post(COPY, body, {"content-type": "image/png; layout=CHW"}), 400, "invalid-parameter")
    assert "layout=NCHW" in problem["detail"]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("image/*", "image/png"),
        ("application/*", "application/x-npy"),
        ("image/avif;q=0.5, image/webp", "image/webp"),
        ("application/octet-stream", "application/octet-stream"),
        ("image/*, image/png;q=0, application/json;q=0.1", "application/json"),
    ],
)
def test_accept_picks_among_pictures_and_tensors(app: AppClient, accept: str, expected: str):
    assert app.post(COPY, saved(COLOURS), PNG | {"accept": accept}).headers["content-type"] == expected


def test_what_no_picture_holds_names_what_does(app: AppClient):
    named = PNG | {"accept": "image/png"}

    def refused(content: bytes, headers: Mapping[str, str], query: str = "1,1,1,1") -> str:
        return assert_problem(app.post(f"{TILE}?repeats={query}", content, headers), 406, "not-acceptable")["detail"]

    clear = saved(np.dstack([COLOURS, COLOURS[..., :1]]))
    assert refused(clear, PNG | {"accept": "image/jpeg"}).endswith(
        "accept image/avif or image/png or image/webp or application/x-npy"
    )
    wide = cv2.imencode(".png", COLOURS.astype(np.uint16))[1].tobytes()
    assert refused(wide, PNG | {"accept": "image/webp"}).endswith("accept image/png or application/x-npy")
    assert "shape (4, 6, 6)" in refused(saved(COLOURS), named, "1,1,1,2")
    repeated = "repeats=1,1,2,3 repeats the channels as well, 3 become 9; write repeats=1,2,3,1"
    assert refused(saved(COLOURS), named, "1,1,2,3").endswith(f"{repeated}; accept application/x-npy")
    assert refused(saved(COLOURS), named, "2,1,1,1").endswith("accept application/x-npy for any tensor")
    # The call's own mistake comes before that of Accept.
    answer = app.post(f"{TILE}?repeats=1,0,1,1", saved(COLOURS), PNG | {"accept": "text/html"})
    assert answer.status_code == 422


def test_the_layout_is_named_where_another_one_fits(app: AppClient):
    picture, named = saved(np.zeros((8, 6, 3), np.uint8)), {"accept": "image/png"}
    first = "a picture is 1, height, width, channels here; for channels first write -H '"
    answer = app.post("/v1/onnx/Transpose?perm=0,3,1,2", picture, PNG | named)
    detail = assert_problem(answer, 406, "not-acceptable")["detail"]
    assert detail.endswith(f"{first}accept: image/png; layout=NCHW'")
    answer = app.post("/v1/onnx/Transpose?perm=0,2,3,1", picture, {"content-type": "image/png; layout=NCHW"} | named)
    detail = assert_problem(answer, 406, "not-acceptable")["detail"]
    assert detail.endswith("for channels last write -H 'accept: image/png; layout=NHWC'")

    answer = app.post(f"{TILE}?repeats=2,3,1", saved(COLOURS), PNG)
    detail = assert_problem(answer, 422, "invalid-descriptor")["detail"]
    assert detail.endswith("the body is uint8 of shape [1, 4, 6, 3]")
    answer = app.post("/v1/operators/depth_to_space?block_size=2", saved(np.zeros((5, 6, 4), np.uint8)), PNG)
    detail = assert_problem(answer, 422, "invalid-descriptor")["detail"]
    as_first = "'input' is a picture, which is channels first, with the Content-Type image/png; layout=NCHW"
    assert f"the body is uint8 of shape [1, 5, 6, 4]; {as_first} (with curl -H '" in detail
    answer = app.post("/v1/operators/element_wise_sqrt", picture, PNG)
    detail = assert_problem(answer, 422, "unsupported-at-feature-level")["detail"]
    floats = "image/png; layout=NHWC; dtype=float32"
    assert detail.endswith(
        f"which is float32 from 0 to 1, with the Content-Type {floats} (with curl -H 'content-type: {floats}')"
    )
    assert app.post("/v1/operators/element_wise_sqrt", picture, {"content-type": floats}).status_code == 200


@pytest.mark.parametrize("accept", [{}, {"accept": "*/*"}, {"accept": "image/png, */*;q=0.1"}])
def test_an_output_that_is_no_picture_is_npy_or_a_frame(app: AppClient, accept: Mapping[str, str]):
    answer = app.post(f"{TILE}?repeats=2,1,1,1", saved(COLOURS), {**PNG, **accept})
    np.testing.assert_array_equal(npy_array(answer.content), np.stack([COLOURS] * 2), strict=True)
    answer = app.post("/v1/operators/split?axis=3&output_sizes=1,4,6,1;1,4,6,2", saved(COLOURS), {**PNG, **accept})
    assert answer.headers["content-type"] == "application/vnd.safetensors"
    assert app.post(COPY, saved(COLOURS), {**PNG, **accept}).headers["content-type"] == "image/png"


def test_a_wrong_media_type_names_the_right_one(app: AppClient):
    body = saved(COLOURS)
    for content_type in ("application/x-npy", "image/jpeg"):
        problem = assert_problem(app.post(COPY, body, {"content-type": content_type}), 400, "invalid-frame")
        assert "Content-Type image/png" in problem["detail"]
    problem = assert_problem(app.post(COPY, body, {"content-type": "image/gif"}), 415, "unsupported-media-type")
    for name in ("image/png", "image/avif", "application/x-npz", "application/octet-stream"):
        assert name in problem["detail"]


def bombs() -> dict[str, bytes]:
    """Small files that announce many pixels, of which none is there; written after the formats' documents."""
    ihdr = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 6, 0, 0, 0)
    extended = b"VP8X" + struct.pack("<IB3x", 10, 16) + (16_382).to_bytes(3, "little") * 2
    lossless = b"VP8L" + struct.pack("<IBI", 9, 0x2F, 16_382 | 16_382 << 14) + bytes(5)
    riff = [b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body for body in (extended, lossless)]
    small = saved(COLOURS, "JPEG")
    frame = small.index(b"\xff\xc0") + 5
    jpeg = small[:frame] + struct.pack(">HH", 65_500, 65_500) + small[frame + 4 :]
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", ihdr) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return {"image/png": png, "image/webp": riff[0], "image/webp; layout=NHWC": riff[1], "image/jpeg": jpeg}


@pytest.mark.parametrize("media_type", bombs())
def test_a_bomb_is_refused_by_its_head(app: AppClient, media_type: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tensorpost.bodies.images.EncodedImage.decode", lambda _: pytest.fail("it was decoded"))

    problem = assert_problem(app.post(COPY, bombs()[media_type], {"content-type": media_type}), 413, "limit-exceeded")

    assert problem["setting"] == "TENSORPOST_MAX_IMAGE_PIXELS"
    assert app.in_use() == {"bytes_in_flight": 0, "requests_in_flight": 0}


def test_files_that_make_a_reader_walk_are_refused(app: AppClient):
    png = saved(COLOURS)
    chunks = png[:33] + chunk(b"tEXt", b"a\0b") * 9000 + png[33:]
    jpeg = saved(COLOURS, "JPEG")
    segments = jpeg[:2] + b"\xff\xfe\0\2" * 600 + jpeg[2:]
    scans = jpeg[:-2] + b"\xff\xda\0\2" * 200 + jpeg[-2:]
    for content, kind, said in ((chunks, "png", "chunks"), (segments, "jpeg", "segments"), (scans, "jpeg", "scans")):
        problem = assert_problem(app.post(COPY, content, {"content-type": f"image/{kind}"}), 400, "invalid-frame")
        assert said in problem["detail"]


def test_broken_and_animated_pictures_are_refused_and_give_their_memory_back(app: AppClient):
    file = io.BytesIO()
    frames = [Image.fromarray(COLOURS), Image.fromarray(COLOURS[::-1])]
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:])
    moving = file.getvalue()
    whole = saved(COLOURS)
    bad = [(moving, "webp", "animated"), (whole[:60], "png", "picture"), (whole[:20], "png", "picture")]
    bad += [
        (saved(COLOURS, "AVIF")[:200], "avif", "picture"),
        (b"", "png", "npy"),
        (b"\xff\xd8\xff", "jpeg", "picture"),
    ]
    for content, kind, said in bad:
        answer = app.post(COPY, content, {"content-type": f"image/{kind}"})
        assert answer.status_code == 400, (kind, answer.text)
        assert said in answer.text or not content
    assert app.in_use() == {"bytes_in_flight": 0, "requests_in_flight": 0}


def test_what_a_picture_unpacks_to_has_the_limit_of_a_body():
    with http_app(backend="numpy", max_body_bytes=400) as app:
        flat = saved(np.zeros((20, 20, 3), np.uint8))
        assert len(flat) < 400
        problem = assert_problem(app.post(COPY, flat, PNG), 413, "limit-exceeded")
        assert problem["setting"] == "TENSORPOST_MAX_BODY_BYTES"


# ---- raw bytes -------------------------------------------------------------------------------------------------------


def raw(shape: str, dtype: str) -> dict[str, str]:
    return {"content-type": "application/octet-stream", "tensorpost-shape": shape, "tensorpost-dtype": dtype}


@pytest.mark.parametrize("shape", ["2, 3", "[2,3]"])
@pytest.mark.parametrize("dtype", ["float32", "F32", "FLOAT32", "<f4", "tensor(float)", "np.float32"])
def test_raw_bytes_in_and_out(app: AppClient, shape: str, dtype: str):
    x = np.arange(6, dtype="<f4").reshape(2, 3)

    answer = app.post(TILE + "?repeats=1,2", x.tobytes(), raw(shape, dtype))

    assert answer.content == np.tile(x, (1, 2)).tobytes()
    fields = ("content-type", "content-length", "tensorpost-shape", "tensorpost-dtype")
    assert [answer.headers[name] for name in fields] == ["application/octet-stream", "48", "2,6", "float32"]


def test_raw_bytes_may_be_of_any_type_and_rank(app: AppClient):
    """ONNX's Tile takes all; bfloat16, which npy has not, and a scalar."""
    answer = app.post("/v1/onnx/Tile?repeats=2", b"\x80\x3f\0\x40", raw("2", "bfloat16"))
    assert (answer.content, answer.headers["tensorpost-dtype"]) == (b"\x80\x3f\0\x40" * 2, "bfloat16")
    answer = app.post("/v1/onnx/Neg", struct.pack("<f", 3), raw("", "float32"))
    assert (answer.content, answer.headers["tensorpost-shape"]) == (struct.pack("<f", -3), "")


@pytest.mark.parametrize(
    ("headers", "code", "said"),
    [
        ({"content-type": "application/octet-stream"}, "invalid-parameter", "Tensorpost-Shape and Tensorpost-Dtype"),
        (raw("2;3", "float32"), "invalid-parameter", "'2;3' is not a shape"),
        (raw("2,3", "float33"), "invalid-parameter", "'float33' is not a data type"),
        (raw("2,3", "str"), "invalid-parameter", "cannot hold 'str'"),
        (raw("2,4", "float32"), "body-length-mismatch", "Content-Length is 24, but float32 of shape [2, 4] has 32"),
    ],
)
def test_raw_bytes_that_are_not_described(app: AppClient, headers: dict[str, str], code: str, said: str):
    assert said in assert_problem(app.post(TILE + "?repeats=1,2", bytes(24), headers), 400, code)["detail"]


# ---- npz -------------------------------------------------------------------------------------------------------------

NPZ = {"content-type": "application/x-npz"}
A, B = np.array([[1, 2, 3]], np.float32), np.array([[10, 20, 30]], np.float32)


def npz(save: Any = np.savez, **arrays: Any) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_holds_several_tensors(app: AppClient, save: Any):
    answer = app.post(ADD, npz(save, b=B, a=A), NPZ)
    with np.load(io.BytesIO(answer.content)) as found:
        np.testing.assert_array_equal(found["output"], A + B, strict=True)

    split = app.post(
        "/v1/operators/split?axis=1&output_sizes=1,1;1,2", npy_bytes(A), NPY | {"accept": NPZ["content-type"]}
    )
    with np.load(io.BytesIO(split.content)) as found:
        assert [value.tolist() for value in found.values()] == [[[1]], [[2, 3]]]

    x = np.array([[[[1, 2]]]], np.float32)
    resized = app.post("/v1/onnx/Resize?mode=nearest", npz(save, scales=np.array([1, 1, 1, 2], np.float32), X=x), NPZ)
    with np.load(io.BytesIO(resized.content)) as found:
        np.testing.assert_array_equal(found["Y" if "Y" in found else "output"], [[[[1, 1, 2, 2]]]])


def test_arrays_without_names_are_taken_in_order(app: AppClient):
    """`np.savez(file, a, b)` names them arr_0 and arr_1; whatever their order in the archive."""
    difference = np.load(
        io.BytesIO(app.post("/v1/operators/element_wise_subtract", npz(arr_1=B, arr_0=A), NPZ).content)
    )
    np.testing.assert_array_equal(difference["output"], A - B)
    parts = [np.array([[index]], np.float32) for index in range(11)]
    for path in ("/v1/operators/join?axis=1", "/v1/onnx/Concat?axis=1"):
        file = io.BytesIO()
        np.savez(file, *parts)
        (joined,) = np.load(io.BytesIO(app.post(path, file.getvalue(), NPZ).content)).values()
        assert joined.tolist() == [list(range(11))]
    tiled = app.post("/v1/onnx/Tile", npz(arr_0=A, arr_1=np.array([1, 2])), NPZ)
    (found,) = np.load(io.BytesIO(tiled.content)).values()
    np.testing.assert_array_equal(found, np.tile(A, (1, 2)))


def test_npz_with_other_names_says_how_to_name_them(app: AppClient):
    problem = assert_problem(app.post("/v1/operators/join?axis=0", npz(left=A, right=B), NPZ), 400, "tensor-mismatch")
    assert "takes the tensors 'input_0', 'input_1', ...; the body has 'left', 'right'" in problem["detail"]
    assert "have these names, or all are without names and in this order" in problem["detail"]


def test_npz_that_is_broken_or_too_large(app: AppClient):
    good = npz(a=A, b=B)
    zeros = npz(np.savez_compressed, a=np.zeros(1 << 19, np.float32), b=B)
    assert len(zeros) < 1 << 16
    flipped = bytearray(good)
    flipped[good.index(A.tobytes())] ^= 1  # its CRC-32 is wrong now
    far = good[:-22] + b"PK\x06\x07" + bytes(16) + good[-22:]
    cases: list[tuple[bytes, int, str]] = [
        (zeros, 413, "TENSORPOST_MAX_BODY_BYTES"),
        (bytes(flipped), 400, "CRC"),
        (good[:-10], 400, "directory"),
        (far, 400, "too large"),
        (npz(A=A, B=B).replace(b"A.npy", b"A.txt"), 400, "npy"),
        (npz(arr_0=A, b=B), 400, "'arr_0', 'b'"),
        (npz(arr_0=A, arr_1=B, arr_2=B), 400, "'arr_2'"),
        (b"", 400, "the body is empty"),
        (npz(a=np.array([None])), 400, "Python objects"),
    ]
    for content, status, said in cases:
        answer = app.post(ADD, content, NPZ)
        assert (answer.status_code, said in answer.text) == (status, True), answer.text
    assert app.in_use() == {"bytes_in_flight": 0, "requests_in_flight": 0}


def test_an_output_that_is_no_picture_names_the_field_that_was_sent(app: AppClient):
    x = npy_bytes(np.zeros((1, 3, 4, 6), np.uint8))
    answer = app.post(COPY, x, NPY | {"accept": "image/png"})

    detail = assert_problem(answer, 406, "not-acceptable")["detail"]
    assert detail.endswith("-H 'accept: image/png; layout=NCHW'")
    assert "content-type" not in detail
