"""Parsers under atheris, in the environment of `make soak`: `-m benchmarks.soak.fuzz frame -max_total_time=30 corpus`.

Whatever the bytes are, a parser returns or raises an error of ours, and what it accepts fits the bytes. Anything else
ends the process, and libFuzzer writes the bytes to a file.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

atheris = importlib.import_module("atheris")  # not installed in .venv
with atheris.instrument_imports(include=["tensorpost"]):
    from tensorpost import frame
    from tensorpost.bodies.images import open_image
    from tensorpost.bodies.json_tensor import tensor_from_json
    from tensorpost.bodies.strict_json import read_json
    from tensorpost.descriptors import parse_operator
    from tensorpost.values.datatypes import data_type
    from tensorpost.values.problems import TensorpostError


def of_frame(data: bytes) -> None:
    """The head of a frame: its spans cover the body."""
    reader = frame.HeadReader(content_length=len(data))
    reader.feed(data)
    head = reader.finish()
    assert head.head_bytes + sum(tensor.nbytes for tensor in head.tensors) == len(data)


def of_npy(data: bytes) -> None:
    """The head of an npy file."""
    reader = frame.NpyHeadReader(content_length=len(data))
    reader.feed(data)
    head = reader.finish()
    assert head.head_bytes + head.body_bytes == len(data)


def of_json(data: bytes) -> None:
    """JSON of ours is JSON of Python's, and a tensor of it has as many elements as its shape says."""
    document = read_json(data)
    assert json.loads(data) == document or "NaN" in repr(document)
    if isinstance(document, dict):
        tensor_from_json(document)


def of_descriptor(data: bytes) -> None:
    """A descriptor that is accepted can be written and is accepted again."""
    document = read_json(data)
    if isinstance(document, dict):
        desc = parse_operator(document)
        assert parse_operator(desc.to_document()) == desc


def of_picture(data: bytes) -> None:
    """A picture of at most 4 megapixels."""
    image = open_image(data, "the body", max_pixels=1 << 22)
    assert image.decode().shape == image.shape


TENSOR = '{"DataType":"FLOAT32","Sizes":[1,2]}'
SEEDS: dict[Callable[[bytes], None], list[bytes]] = {
    of_frame: [
        frame.encode_head([("a", data_type("F32"), (2, 3)), ("b", data_type("U8"), ())], {"id": "7"}) + bytes(25)
    ],
    of_npy: [frame.encode_npy_head(data_type("F32"), (2, 3)) + bytes(24)],
    of_json: [b'{"dtype":"F32","shape":[2],"data":[1,-2.5e3]}'],
    of_descriptor: [
        f'{{"type":"TILE","desc":{{"InputTensor":{TENSOR},"Repeats":[1,2]}}}}'.encode(),
        f'{{"type":"GEMM","desc":{{"ATensor":{TENSOR},"BTensor":{TENSOR},"Alpha":1,"TransB":true}}}}'.encode(),
        f'{{"type":"RESAMPLE2","desc":{{"InputTensor":{TENSOR},"Scales":[1,2],"InterpolationMode":"LINEAR"}}}}'.encode(),
    ],
    of_picture: [],
}
PARSERS = {parser.__name__.removeprefix("of_"): parser for parser in SEEDS}


def pictures() -> list[bytes]:
    """Small ones of each format."""
    import io

    from PIL import Image

    found: list[bytes] = []
    for name in ("PNG", "JPEG", "WEBP"):
        target = io.BytesIO()
        Image.new("RGB", (4, 3), (1, 2, 3)).save(target, name)
        found.append(target.getvalue())
    return found


def main() -> None:
    """Fuzz the parser that the first argument names; the others are libFuzzer's, the last one the corpus."""
    parser = PARSERS[sys.argv.pop(1)]
    folder = Path(sys.argv[-1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[parser] or pictures()):
        (folder / f"seed-{number}").write_bytes(seed)

    def one(data: bytes) -> None:
        try:
            parser(data)
        except TensorpostError as error:
            json.dumps(error.to_problem())

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
