"""Mutated pictures and pictures that unpack to more than they should, sent to a running server."""

from __future__ import annotations

import contextlib
import io
import random
import re
import struct
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from PIL import Image
from tests.support.http_app import Answer, Wire, request_bytes

from .. import servers
from ..servers import Server, resident, resident_family
from .finding import LIVE, LOCAL, SMALL, Finding, ask, in_processes, settled

PICTURES_PER_SECOND = 700
"""The factor that makes a count of a row's time: more than 30,000 pictures in the 46 s of a whole soak."""
PROCESSES = 2
DECLARED = frozenset((200, 400, 408, 413, 415, 422, 429, 503))
"""Statuses that a picture may be answered with."""
SLOWEST_SECONDS = 20.0
"""An answer that takes longer counts as none."""
GROWTH_BYTES = 96 << 20
"""Memory by which the server may have grown: what its allocators keep."""
MIB = 1 << 20
BOMBERS, BOMB_BUDGET = 8, 3 << 30
FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "TIFF", "GIF", "BMP")
PATH = "/v1/operators/tile?repeats=1,1,1,1"
_OF_THE_MACHINE = re.compile(rb" at 0x[0-9a-f]{6}|site-packages|/usr/|/home/|/root/")


def picture_fuzz(seconds: float) -> Iterator[Finding]:
    """Mutated pictures, then bombs beside a caller who behaves well."""
    with servers.tensorpost(max_image_pixels=1 << 20) as server:
        yield mutated(server, max(1000, round(seconds * PICTURES_PER_SECOND)))
    with servers.tensorpost(memory_bytes=BOMB_BUDGET) as server:
        answers_to(server.port, *seeds()[0])  # starts the processes
        for name, (kind, sent) in bombs().items():
            yield bombed(server, name, kind, sent)


def mutated(server: Server, count: int) -> Finding:
    """Send so many mutated pictures: none may end the server, be answered as its fault, or not be answered."""
    some(server.port, 500, -1)  # memory that the first pictures take for good
    before, most = resident(server.process), [0]

    def meanwhile() -> None:
        most[0] = max(most[0], resident(server.process))

    begin = time.monotonic()
    outcomes, wrong = Counter[str](), list[str]()
    for found in in_processes(
        [partial(some, server.port, count // PROCESSES, seed) for seed in range(PROCESSES)], meanwhile
    ):
        outcomes += found[0]
        wrong += found[1]
    took, left = time.monotonic() - begin, settled(server.port)
    time.sleep(1)
    after = resident(server.process)
    statuses = ", ".join(f"{number:,} of {status}" for status, number in sorted(outcomes.items()))
    seen = (
        f"{statuses}; {len(wrong):,} wrong; resident {before / MIB:.0f} MiB before, {most[0] / MIB:.0f} at most, "
        f"{after / MIB:.0f} after; in use at the end: {left or 'nothing'}; {took:.0f} s"
    )
    holds = not wrong and not left and after <= before + GROWTH_BYTES and outcomes.total() >= count - PROCESSES
    return Finding(f"{count:,} mutated pictures of {', '.join(FORMATS)}", "; ".join([seen, *wrong[:3]]), holds)


def some(port: int, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Send so many pictures on one connection, and look at the answers."""
    dice, known = random.Random(seed), seeds()
    outcomes, wrong, wire = Counter[str](), list[str](), None
    for _ in range(count):
        kind, picture = dice.choice(known)
        sent = mutation(dice, picture, [each for other, each in known if other == kind])
        begin = time.monotonic()
        try:
            wire = wire or Wire("127.0.0.1", port)
            wire.socket.settimeout(SLOWEST_SECONDS)
            wire.send(post(kind, sent))
            answer = wire.answer()
            what = str(answer.status)
            if answer.headers.get("connection") == "close":
                wire.close()
                wire = None
            if answer.status not in DECLARED or not is_named(answer):
                wrong.append(f"{kind} {answer.status} {answer.body[:160]!r}")
        except (OSError, EOFError) as error:
            what, wire = type(error).__name__, None
            wrong.append(f"{kind} {what} after {time.monotonic() - begin:.1f} s: {error}")
        outcomes[what] += 1
    if wire is not None:
        wire.close()
    return outcomes, wrong


def is_named(answer: Answer) -> bool:
    """Whether an answer is a tensor, or an error with a code that says nothing of the machine."""
    if answer.status == 200:
        return answer.headers["content-type"] == "application/x-npy"
    return bool(answer.json().get("type")) and _OF_THE_MACHINE.search(answer.body) is None


def post(kind: str, picture: bytes) -> bytes:
    """A request with a picture of this kind, whose pixels are wanted back."""
    headers = {"content-type": f"image/{kind.lower()}", "accept": "application/x-npy"}
    return request_bytes("POST", PATH, picture, headers | LOCAL)


# ---- mutations -------------------------------------------------------------------------------------------------------


def mutation(dice: random.Random, picture: bytes, others: list[bytes]) -> bytes:
    """The picture with one to eight changes; those of PNG get true checksums half of the time."""
    data = bytearray(picture)
    for _ in range(dice.choice((1, 1, 2, 3, 8))):
        at = min(int(dice.random() ** 2 * len(data)), len(data) - 1) if data else 0  # heads more often
        way = dice.randrange(7)
        if way == 0 and data:
            data[at] ^= 1 << dice.randrange(8)
        elif way == 1 and data:
            data[at] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        elif way == 2:
            wide = dice.choice((2, 4, 8))
            value = dice.choice((0, 1, (1 << 8 * wide) - 1, 1 << 8 * wide - 1, dice.randrange(1 << 8 * wide)))
            data[at : at + wide] = value.to_bytes(wide, dice.choice(("big", "little")))
        elif way == 3:
            del data[dice.randrange(len(data) + 1) :]
        elif way == 4:
            del data[at : at + dice.randrange(1, 64)]
        elif way == 5:
            begin = dice.randrange(len(data) + 1)
            data[at:at] = data[begin : begin + dice.randrange(1, 256)]
        else:
            other = dice.choice(others)
            begin = dice.randrange(len(other))
            piece = other[begin : begin + dice.randrange(1, 512)]
            data[at : at + len(piece)] = piece
    return with_checksums(bytes(data)) if dice.random() < 0.5 else bytes(data)


def with_checksums(data: bytes) -> bytes:
    """A PNG whose chunks have true checksums, as far as it can be read; anything else as it is."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data
    out, at = bytearray(data), 8
    while at + 12 <= len(out):
        end = at + 8 + int.from_bytes(out[at : at + 4], "big")
        if end + 4 > len(out):
            break
        out[end : end + 4] = struct.pack(">I", zlib.crc32(out[at + 4 : end]))
        at = end + 4
    return bytes(out)


def seeds() -> list[tuple[str, bytes]]:
    """Small pictures of each format, in the modes and with the parts that they may have."""
    random_ = np.random.default_rng(22)
    colours = random_.integers(0, 256, (24, 20, 3), np.uint8)
    smooth = np.dstack([np.add.outer(np.arange(40), np.arange(32)) * 3] * 3).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112], exif[0x010F], exif[0x011A] = 6, "maker", 72.5
    picture, wide = Image.fromarray(colours), Image.fromarray(smooth)
    alpha = picture.convert("RGBA")
    alpha.putalpha(90)
    grey16 = Image.fromarray(random_.integers(0, 65_536, (9, 7), np.uint16))
    options: dict[str, list[tuple[Image.Image, dict[str, Any]]]] = {
        "PNG": [
            (picture, {}), (alpha, {"exif": exif}), (picture.convert("P"), {"transparency": 3}), (grey16, {}),
            (wide.convert("1"), {}), (picture.convert("L"), {"transparency": 7}), (wide, {"icc_profile": bytes(300)}),
            (picture, {"save_all": True, "append_images": [alpha.convert("RGB")]}), (wide.convert("LA"), {}),
        ],
        "JPEG": [
            (picture, {}), (wide, {"progressive": True, "exif": exif}), (wide.convert("L"), {}),
            (picture.convert("CMYK"), {}), (wide, {"icc_profile": bytes(3000), "subsampling": 2}),
        ],
        "WEBP": [
            (picture, {}), (picture, {"lossless": True}), (alpha, {"exif": exif}), (wide, {"icc_profile": bytes(300)}),
            (picture, {"save_all": True, "append_images": [wide.resize((20, 24))]}),
        ],
        "AVIF": [
            (picture, {"speed": 10}), (alpha, {"speed": 10, "exif": exif}), (wide.convert("L"), {"speed": 10}),
            (wide, {"speed": 10, "tile_rows": 1, "autotiling": False}),
            (picture, {"speed": 10, "save_all": True, "append_images": [wide.resize((20, 24))]}),
        ],
        "TIFF": [(picture, {}), (picture, {"compression": "tiff_lzw"}), (wide, {"compression": "jpeg"})],
        "GIF": [(picture.convert("P"), {}), (wide, {"save_all": True, "append_images": [picture.resize((32, 40))]})],
        "BMP": [(picture, {}), (wide.convert("1"), {})],
    }  # fmt: skip
    return [(kind, saved(each, kind, more)) for kind, some_ in options.items() for each, more in some_]


def saved(picture: Image.Image, kind: str, options: dict[str, Any]) -> bytes:
    """The picture as a file."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


# ---- bombs -----------------------------------------------------------------------------------------------------------


def bombs() -> dict[str, tuple[str, bytes]]:
    """Pictures that are small as files and large, or long to decode, as pixels; each with its format."""
    grey = np.zeros((6000, 6000), np.uint8)
    picture = Image.fromarray(grey)
    progressive = saved(picture, "JPEG", {"progressive": True})
    last = progressive.rindex(b"\xff\xda")
    webp = saved(Image.new("RGBA", (16, 16)), "WEBP", {"lossless": True})
    vp8x = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (16_382).to_bytes(3, "little") + (8000).to_bytes(3, "little")
    avif = saved(Image.new("RGB", (64, 64)), "AVIF", {"speed": 10})
    at = avif.index(b"ispe") + 8
    png = saved(picture, "PNG", {})
    text = zlib.compress(bytes(64 << 20), 9)
    return {
        "PNG of 36 megapixels in 36 KB": ("PNG", png),
        "PNG of 4,294,967,295 x 4,294,967,295": ("PNG", with_checksums(png[:16] + b"\xff" * 8 + png[24:])),
        "PNG with a text of 64 MiB in 64 KB": ("PNG", png[:33] + chunk(b"zTXt", b"a\0\0" + text) + png[33:]),
        "PNG of 30,000 empty chunks": ("PNG", png[:33] + chunk(b"tEXt", b"") * 30_000 + png[33:]),
        "JPEG of 36 megapixels with 90 scans": ("JPEG", progressive[:-2] + progressive[last:-2] * 90 + b"\xff\xd9"),
        "JPEG of 65,500 x 65,500": ("JPEG", with_jpeg_size(progressive, 65_500)),
        "WebP with a canvas of 131 megapixels": ("WEBP", webp[:12] + vp8x + webp[12:]),
        "AVIF that says 65,535 x 65,535": ("AVIF", avif[:at] + struct.pack(">II", 65_535, 65_535) + avif[at + 8 :]),
        "TIFF of 36 megapixels": ("TIFF", saved(picture, "TIFF", {"compression": "tiff_lzw"})),
    }


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def with_jpeg_size(data: bytes, side: int) -> bytes:
    """A progressive JPEG that says other sizes."""
    at = data.index(b"\xff\xc2") + 5
    return data[:at] + struct.pack(">HH", side, side) + data[at + 4 :]


def bombed(server: Server, name: str, kind: str, sent: bytes) -> Finding:
    """Send it on eight connections, twice each: memory stays in its budget, and others are answered meanwhile."""
    before, most, live = resident_family(server.process), [0], list[float]()

    def meanwhile() -> None:
        most[0] = max(most[0], resident_family(server.process))
        begin = time.monotonic()
        ask(server.port, LIVE)
        live.append(time.monotonic() - begin)

    begin = time.monotonic()
    found = in_processes([partial(answers_to, server.port, kind, sent)] * BOMBERS, meanwhile)
    took, left = time.monotonic() - begin, settled(server.port)
    statuses = sorted({status for each in found for status in each})
    small = ask(server.port, SMALL).status
    seen = (
        f"answers {statuses}; server and its processes {before / MIB:.0f} MiB before, {most[0] / MIB:.0f} at most, "
        f"{resident_family(server.process) / MIB:.0f} after; liveness in {max(live, default=0) * 1e3:.0f} ms at most; "
        f"{took:.1f} s"
    )
    holds = {*statuses} <= DECLARED and not left and small == 200 and most[0] <= before + BOMB_BUDGET + GROWTH_BYTES
    return Finding(
        f"{2 * BOMBERS} of {name} ({len(sent):,} bytes), memory budget {BOMB_BUDGET / MIB:.0f} MiB", seen, holds
    )


def answers_to(port: int, kind: str, sent: bytes) -> list[int]:
    """The statuses of two answers."""
    statuses: list[int] = []
    for _ in range(2):
        with contextlib.closing(Wire("127.0.0.1", port)) as wire:
            wire.socket.settimeout(300)
            wire.send(post(kind, sent))
            statuses.append(wire.answer().status)
    return statuses
