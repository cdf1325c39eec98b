"""Header fields of HTTP/2, against the examples of RFC 7541 and blocks that break its rules."""

from __future__ import annotations

import pytest

from tensorpost_server.http.connection.hpack import HeaderDecoder, InvalidHeaderBlock, literal

GET = ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com"))
NO_CACHE = (b"cache-control", b"no-cache")
CUSTOM = (
    (b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html"), (b":authority", b"www.example.com"),
    (b"custom-key", b"custom-value"),
)  # fmt: skip
C_3 = ("828684410f7777772e6578616d706c652e636f6d", "828684be58086e6f2d6361636865",
       "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565")  # fmt: skip
C_4 = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)


@pytest.mark.parametrize("blocks", [C_3, C_4], ids=["C.3, as they are", "C.4, in Huffman's code"])
def test_the_requests_of_the_rfc(blocks: tuple[str, ...]) -> None:
    decoder = HeaderDecoder(1000)

    assert [decoder.decode(bytes.fromhex(block)) for block in blocks] == [GET, (*GET, NO_CACHE), CUSTOM]


def test_a_response_of_the_rfc_in_huffmans_code() -> None:
    """C.6.1."""
    block = (
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3"
    )

    assert HeaderDecoder(1000).decode(bytes.fromhex(block)) == (
        (b":status", b"302"), (b"cache-control", b"private"), (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"),
        (b"location", b"https://www.example.com"),
    )  # fmt: skip


def test_a_block_that_is_known_is_decoded_by_the_table_of_now() -> None:
    decoder = HeaderDecoder(1000)
    found = list[bytes]()
    for value in (b"first", b"second"):
        decoder.decode(b"\x40" + literal(b"a", value)[1:])
        found += [decoder.decode(b"\xbe")[0][1], decoder.decode(b"\xbe")[0][1]]

    assert found == [b"first", b"first", b"second", b"second"]


def test_the_table_drops_its_oldest_fields() -> None:
    decoder = HeaderDecoder(100_000)
    for number in range(50):
        decoder.decode(b"\x40" + literal(b"name", b"%096d" % number)[1:])  # 132 bytes each: 31 fit

    assert decoder.decode(bytes([0x80 | 62 + 30])) == ((b"name", b"%096d" % 19),)
    with pytest.raises(InvalidHeaderBlock):
        decoder.decode(bytes([0x80 | 62 + 31]))
    decoder.decode(b"\x20")
    with pytest.raises(InvalidHeaderBlock):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize(("block", "says"), [
    ("80", "not in the table"), ("be", "not in the table"), ("ffffffffffff", "no end"), ("ff80", "no end"),
    ("3fe21f", "larger than it may be"), ("8220", "within a block"), ("00", "ends within a field"),
    ("000561", "within a string"), ("000161820000", "ends within a code"), ("00016184ffffffff", "end of strings"),
    ("00016182fff8", "ends within a code"),
])  # fmt: skip
def test_blocks_that_are_refused(block: str, says: str) -> None:
    with pytest.raises(InvalidHeaderBlock, match=says):
        HeaderDecoder(1000).decode(bytes.fromhex(block))


def test_a_small_block_of_a_large_list_is_refused() -> None:
    decoder = HeaderDecoder(16_384)
    decoder.decode(b"\x40" + literal(b"a", b"b" * 1000)[1:])

    with pytest.raises(InvalidHeaderBlock, match="more than 16,384 bytes"):
        decoder.decode(b"\xbe" * 17)
