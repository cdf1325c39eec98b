"""Media types of requests and responses: npy, npz, raw bytes, pictures, a frame, or plain JSON.

Content-Type selects the reader. Accept selects the writers that may be used, in the caller's order; the first one that
can hold the outputs writes the response. Without Accept, this is the media type of the request, or else npy, a frame,
or JSON, the only one of these that holds strings.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from email.message import Message
from typing import NamedTuple

from tensorpost import frame
from tensorpost.bodies.images import image_formats
from tensorpost.values.problems import InvalidParameter, NotAcceptable, UnsupportedMediaType

from .bounded_cache import MOST_KEY_BYTES
from .raw_tensor import RawTensor


class MediaType(enum.Enum):
    """A media type that is read and written here."""

    NPY = frame.NPY_MEDIA_TYPE
    NPZ = "application/x-npz"
    FRAME = frame.MEDIA_TYPE
    RAW = "application/octet-stream"
    JSON = "application/json"
    PNG = "image/png"
    JPEG = "image/jpeg"
    WEBP = "image/webp"
    AVIF = "image/avif"
    MULTIPART = "multipart/form-data"  # of requests only

    __hash__ = object.__hash__  # Enum's own is written in Python, and members are part of every key of the call cache


IMAGE_TYPES = frozenset((MediaType.PNG, MediaType.JPEG, MediaType.WEBP, MediaType.AVIF))
"""The media types of pictures; their names are those of `tensorpost.images.IMAGE_FORMATS`."""

_MEDIA_TYPES: Mapping[str, MediaType] = {
    **{media_type.value: media_type for media_type in MediaType},
    **dict.fromkeys(frame.ALSO_READ, MediaType.FRAME),
}
_EXACT: Mapping[bytes | None, MediaType] = {
    name.encode(): media_type for name, media_type in _MEDIA_TYPES.items() if media_type not in IMAGE_TYPES
}  # a multipart body without its boundary is refused where it is read
_NPY_START = b"\x93NUMPY\x01\x00"
_MOST_RANGES = 64  # media types in Accept; browsers send 8


class Pixels(NamedTuple):
    """How the tensor of a picture lies: the parameters of an image's media type.

    Attributes:
        layout: NHWC or NCHW.
        dtype: float32, whose 0 to 1 stand for 0 to 255 or 65,535; None for the picture's own uint8 or uint16.
    """

    layout: str = "NHWC"
    dtype: str | None = None

    @classmethod
    def from_parameters(cls, parameters: Sequence[str], inherited: Pixels) -> Pixels:
        """Read the parameters of a media type, as in `image/png; layout=NCHW; dtype=float32`.

        Raises:
            InvalidParameter: an unknown parameter, or a value that it cannot have.
        """
        layout, dtype = inherited
        for parameter in parameters:
            name, _, value = (part.strip().strip('"') for part in parameter.partition("="))
            if name.lower() == "layout" and value.upper() in ("NHWC", "NCHW"):
                layout = value.upper()
            elif name.lower() == "dtype" and value.lower() in ("uint8", "float32"):
                dtype = None if value.lower() == "uint8" else "float32"
            elif name and name.lower() != "q":
                raise InvalidParameter(
                    f"the media type of a picture has no parameter {parameter.strip()[:60]!r}; there are layout=NHWC "
                    "(the default), layout=NCHW, dtype=uint8 (the default) and dtype=float32"
                )
        return cls(layout, dtype)

    def axes(self, media_type: str) -> str:
        """What the axes of a picture in an answer are and how Accept chooses the others, for messages."""
        is_last = self.layout == "NHWC"
        axes, order = ("height, width, channels", "first") if is_last else ("channels, height, width", "last")
        other = self._replace(layout="NCHW" if is_last else "NHWC")
        return f"a picture is 1, {axes} here; for channels {order} write -H 'accept: {other.media_type(media_type)}'"

    def media_type(self, name: str) -> str:
        """A picture's media type with these parameters, as in `image/png; layout=NCHW`."""
        return f"{name}; layout={self.layout}" + (f"; dtype={self.dtype}" if self.dtype else "")


_PLAIN = Pixels()


class RequestFormat(NamedTuple):
    """How a request is read and its response is written.

    Attributes:
        read: how the tensor of a picture in the body lies.
        written: how that of a picture in the answer lies.
        others: media types that the response may have where `response` cannot hold it, each with its `written`.
        raw: the tensor of a raw body; None for other forms.
        boundary: what stands between the parts of a multipart body; empty for other forms.
        unacceptable: why nothing in Accept can be written, if so. What is wrong with the call is said before that.
    """

    request: MediaType
    response: MediaType
    read: Pixels = _PLAIN
    written: Pixels = _PLAIN
    raw: RawTensor | None = None
    unacceptable: str | None = None
    boundary: bytes = b""
    others: tuple[tuple[MediaType, Pixels], ...] = ()

    @property
    def choices(self) -> Iterator[RequestFormat]:
        """The format with each media type that the response may have, the preferred one first."""
        yield self
        for media_type, pixels in self.others:
            yield self._replace(response=media_type, written=pixels, others=())

    @property
    def may_replay(self) -> bool:
        return self.request in (MediaType.NPY, MediaType.FRAME)

    def head_length(self, begin: bytes | memoryview) -> int:
        if self.request is MediaType.NPY:
            length = 10 + int.from_bytes(begin[8:10], "little") if bytes(begin[:8]) == _NPY_START else 0
        elif self.request is MediaType.FRAME:
            length = 8 + int.from_bytes(begin[:8], "little")
        else:
            length = 0
        return length if length <= MOST_KEY_BYTES and length <= len(begin) else 0

    def text_bytes(self, length: int) -> int:
        return 0 if self.request is MediaType.RAW else length

    @classmethod
    def from_headers(cls, headers: Mapping[bytes, bytes], body_bytes: int) -> RequestFormat:
        """The format that the header fields name. An empty body needs no Content-Type; it counts as npy.

        Raises:
            UnsupportedMediaType: no Content-Type, one that is not read here, or a compressed body.
            InvalidParameter: Accept has a malformed quality, a picture an unknown parameter, or a raw body no
                shape and data type.
        """
        content_type, accept = headers.get(b"content-type"), headers.get(b"accept")
        request = _EXACT.get(content_type)  # as most callers write it, without parameters
        if request is None:
            request = MediaType.NPY if content_type is None and not body_bytes else _request_type(content_type)
        refuse_content_encoding(headers)
        if accept in (None, b"*/*") and request not in _DESCRIBED:  # as most calls are
            return cls(request, request, others=_OTHERS[request])
        boundary = boundary_of(content_type or b"") if request is MediaType.MULTIPART else b""
        read, raw = _PLAIN, None
        if request in IMAGE_TYPES:
            read = Pixels.from_parameters((content_type or b"").decode("latin-1").split(";")[1:], _PLAIN)
        elif request is MediaType.RAW:
            raw = RawTensor.from_headers(headers)
        likewise = MediaType.NPY if request is MediaType.MULTIPART else request
        try:
            ranked = _response_types("*/*" if accept is None else accept.decode("latin-1"), likewise)
        except NotAcceptable as error:
            return cls(request, request, read, read, raw, error.detail)
        (response, written), *others = [(kind, Pixels.from_parameters(each, read)) for kind, each in ranked]
        return cls(request, response, read, written, raw, boundary=boundary, others=tuple(others))


_DESCRIBED = IMAGE_TYPES | {MediaType.RAW, MediaType.MULTIPART}
"""Media types of which header fields say more."""

_FALLBACKS = (MediaType.NPY, MediaType.FRAME, MediaType.JSON)
"""What a response is written as where nobody named a media type, and that of the request cannot hold it."""

_OTHERS = {request: tuple([(each, _PLAIN) for each in _FALLBACKS if each is not request]) for request in MediaType}


_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")


def boundary_of(content_type: bytes) -> bytes:
    """The boundary of a Content-Type.

    Raises:
        UnsupportedMediaType: it has none.
    """
    message = Message()
    message["content-type"] = content_type.decode("latin-1")
    found = message.get_param("boundary")
    if not isinstance(found, str) or not _BOUNDARY.fullmatch(found):
        raise UnsupportedMediaType(
            "multipart/form-data has no valid boundary; send parts as curl -F 'photo=@cat.jpg' does"
        )
    return found.encode()


def _known(*, written: bool = False) -> str:
    """The media types that this server reads, or writes."""
    there = [each for each in MediaType if _is_here(each) and not (written and each is MediaType.MULTIPART)]
    return ", ".join([each.value for each in there])


def _is_here(media_type: MediaType) -> bool:
    """Whether it is read and written here: which pictures are depends on Pillow."""
    return media_type not in IMAGE_TYPES or media_type.name in image_formats()


def require_json(headers: Mapping[bytes, bytes]) -> None:
    """Accept only `application/json`; a web page may post text to any host without asking it.

    Source: WHATWG Fetch, "CORS-safelisted request-header".

    Raises:
        UnsupportedMediaType: no Content-Type, or another.
    """
    _request_type(headers.get(b"content-type"), MediaType.JSON)


def require_parts(headers: Mapping[bytes, bytes]) -> None:
    """Accept only multipart/form-data, which has a place for a model beside its tensors.

    Raises:
        UnsupportedMediaType: no Content-Type, or another.
    """
    name = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if name != MediaType.MULTIPART.value:
        raise UnsupportedMediaType(
            f"a model is sent as a part of {MediaType.MULTIPART.value}, beside a part for each tensor: "
            "curl -F model=@model.onnx -F x=@x.npy",
            extra={"accept": MediaType.MULTIPART.value},
        )


def refuse_content_encoding(headers: Mapping[bytes, bytes]) -> None:
    """Accept only bodies without a content coding (RFC 9110, section 8.4).

    Raises:
        UnsupportedMediaType: the body is compressed.
    """
    encoding = headers.get(b"content-encoding", b"").decode("latin-1")
    if encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"Content-Encoding {encoding[:80]!r} is not supported; send the body uncompressed",
            extra={"accept_encoding": "identity"},
        )


_FORM = "application/x-www-form-urlencoded"  # what curl says of a body unless it is told otherwise


def _request_type(content_type: bytes | None, only: MediaType | None = None) -> MediaType:
    name = (content_type or b"").decode("latin-1").partition(";")[0].strip().lower()
    media_type = _MEDIA_TYPES.get(name)
    if media_type is not None and only in (None, media_type) and _is_here(media_type):
        return media_type
    what = f"Content-Type {name[:80]!r} is not read here" if name else "there is no Content-Type"
    known = _known() if only is None else only.value
    hint = ""
    if name == _FORM:
        hint = f", with curl by -H 'content-type: {MediaType.JSON.value}' for JSON"
        if only is None:
            hint += f" and -H 'content-type: {MediaType.NPY.value}' for an npy file"
    raise UnsupportedMediaType(f"{what}; send {known}{hint}", extra={"accept": known})


def _response_types(accept: str, request: MediaType) -> list[tuple[MediaType, list[str]]]:
    """The writers for an Accept header (RFC 9110, section 12.5.1), the best first, each with its parameters.

    A wildcard stands for the request's media type and `_FALLBACKS`; `image/*` for the request's, or else PNG;
    `application/*` for the request's, or npy if that is a picture, and `_FALLBACKS`.

    Raises:
        NotAcceptable: there is none.
        InvalidParameter: a quality is malformed, or there are too many media types.
    """
    if accept == "*/*":
        return [(request, []), *[(each, []) for each in _FALLBACKS if each is not request]]
    if (count := accept.count(",") + 1) > _MOST_RANGES:
        raise InvalidParameter(f"Accept names {count:,} media types; at most {_MOST_RANGES} are read")
    is_image = request in IMAGE_TYPES
    by_range: dict[str, tuple[MediaType, ...]] = {
        **{name: (media_type,) for name, media_type in _MEDIA_TYPES.items()},
        "*/*": (request, *_FALLBACKS),
        "application/*": _FALLBACKS if is_image else (request, *_FALLBACKS),
        "image/*": (request, MediaType.PNG) if is_image else (MediaType.PNG,),
    }
    ranked: list[tuple[float, int, MediaType, list[str]]] = []
    excluded: set[MediaType] = set()
    for order, item in enumerate(accept.split(",")):
        name, *parameters = [part.strip() for part in item.split(";")]
        name = name.lower()
        quality = next((text[2:] for text in parameters if text.lower().startswith("q=")), "1")
        if not re.fullmatch(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?", quality):
            raise InvalidParameter(f"Accept has the malformed quality {quality[:40]!r}; send a number from 0 to 1")
        weight = float(quality)
        for media_type in () if name == MediaType.MULTIPART.value else by_range.get(name, ()):
            if weight > 0 and _is_here(media_type):
                ranked.append((-weight, order, media_type, parameters if media_type in IMAGE_TYPES else []))
            elif name in _MEDIA_TYPES:
                excluded.add(media_type)
    ranked.sort(key=lambda entry: entry[:2])
    found: dict[MediaType, list[str]] = {}
    for _, _, media_type, parameters in ranked:
        if media_type not in excluded:
            found.setdefault(media_type, parameters)
    if not found:
        raise NotAcceptable(f"nothing in Accept {accept[:80]!r} can be written here; accept {_known(written=True)}")
    return [*found.items()]
