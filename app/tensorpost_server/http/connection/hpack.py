"""HPACK (RFC 7541), the coding of header fields in HTTP/2: what callers send is decoded, with a bound on its size.

Responses are written as literals without a table (`literal`), since there are few of them and they are short.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

Fields = tuple[tuple[bytes, bytes], ...]

TABLE_BYTES = 4096
"""Size of the dynamic table, RFC 9113's default for SETTINGS_HEADER_TABLE_SIZE."""

_ENTRY_BYTES = 32  # that each entry counts beside its name and value (section 4.1)
_MOST_KNOWN, _MOST_KNOWN_BYTES = 64, 1024
_LONGEST_INTEGER = 4  # bytes after its prefix: 2^28
_STATIC_LINES = (
    b":authority,:method=GET,:method=POST,:path=/,:path=/index.html,:scheme=http,:scheme=https,:status=200,:status=204,"
    b":status=206,:status=304,:status=400,:status=404,:status=500,accept-charset,accept-encoding=gzip; deflate,"
    b"accept-language,accept-ranges,accept,access-control-allow-origin,age,allow,authorization,cache-control,"
    b"content-disposition,content-encoding,content-language,content-length,content-location,content-range,content-type,"
    b"cookie,date,etag,expect,expires,from,host,if-match,if-modified-since,if-none-match,if-range,if-unmodified-since,"
    b"last-modified,link,location,max-forwards,proxy-authenticate,proxy-authorization,range,referer,refresh,retry-after,"
    b"server,set-cookie,strict-transport-security,transfer-encoding,user-agent,vary,via,www-authenticate"
)
_STATIC = tuple([
    (name, value.replace(b";", b",")) for name, _, value in [each.partition(b"=") for each in _STATIC_LINES.split(b",")]
])  # fmt: skip
"""Appendix A."""

_HUFFMAN_LENGTHS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b080606060505"
    "050606060606060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e060f050605"
    "06050606060507070606060506070605050607070707070f0b0e0d1c14161414161616171617171717171817181816171817"
    "1717171516171617171816151416161717151716161815161717151516151716171714161616171616171a1a141316171619"
    "1a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c"
    "1b1b1b1b1b1a1e"
)
"""Bits of each symbol's code, Appendix B. The codes are canonical: those of a length ascend with their symbols."""


def _codes() -> dict[int, int]:
    """Symbols by their codes, each with a 1 before its first bit; 256 is the end of the string."""
    codes, code, before = dict[int, int](), 0, 0
    for length, symbol in sorted([(length, symbol) for symbol, length in enumerate(_HUFFMAN_LENGTHS)]):
        code <<= length - before
        codes[1 << length | code] = symbol
        code, before = code + 1, length
    return codes


_CODES = _codes()
_END_OF_STRING = 256


class InvalidHeaderBlock(Exception):
    """The block cannot be decoded, or is larger than it may be; the connection's table is then unknown."""


@lru_cache(maxsize=16_384)
def _huffman_step(node: int, byte: int) -> tuple[int, bytes]:
    """What eight more bits complete after the bits of `node`, and the bits that are left."""
    symbols = bytearray()
    for shift in range(7, -1, -1):
        node = node << 1 | byte >> shift & 1
        if (symbol := _CODES.get(node)) is not None:
            if symbol == _END_OF_STRING:
                raise InvalidHeaderBlock("a string holds the end of strings")
            symbols.append(symbol)
            node = 1
    return node, bytes(symbols)


def _huffman(data: bytes) -> bytes:
    node, parts = 1, list[bytes]()
    for byte in data:
        node, part = _huffman_step(node, byte)
        parts.append(part)
    if node & node + 1 or node > 0xFF:  # the padding is fewer than 8 ones (section 5.2)
        raise InvalidHeaderBlock("a string ends within a code")
    return b"".join(parts)


class HeaderDecoder:
    """Decodes the header blocks of one connection, in their order.

    Args:
        most_bytes: largest list of fields, each counted with 32 bytes more (RFC 9113, SETTINGS_MAX_HEADER_LIST_SIZE).
    """

    __slots__ = ("_known", "_most", "_most_table", "_table", "_table_bytes")

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._table = deque[tuple[bytes, bytes]]()
        self._table_bytes, self._most_table = 0, TABLE_BYTES
        self._known = dict[bytes, Fields]()  # of blocks that change no table, for as long as it stays

    def decode(self, block: bytes) -> Fields:
        """The fields, in their order.

        Raises:
            InvalidHeaderBlock: the block is malformed or its list is too large.
        """
        if (known := self._known.get(block)) is not None:
            return known
        fields, size, at, resized, changed = list[tuple[bytes, bytes]](), 0, 0, 0, False
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                field = self._entry(index)
            elif first & 0xE0 == 0x20:
                size_limit, at = _integer(block, at, 5)
                resized += 1
                if size_limit > TABLE_BYTES or fields or resized > 2:
                    raise InvalidHeaderBlock("the table is made larger than it may be, within a block, or three times")
                self._most_table, changed = size_limit, True
                self._evict(0)
                continue
            else:
                is_kept = bool(first & 0x40)
                index, at = _integer(block, at, 6 if is_kept else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                field = name, value
                if is_kept:
                    changed = True
                    self._keep(field)
            size += len(field[0]) + len(field[1]) + _ENTRY_BYTES
            if size > self._most:
                raise InvalidHeaderBlock(f"the header fields have more than {self._most:,} bytes")
            fields.append(field)
        decoded = tuple(fields)
        if changed:
            self._known.clear()
        elif len(block) <= _MOST_KNOWN_BYTES:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[block] = decoded
        return decoded

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if 0 < index <= len(_STATIC):
            return _STATIC[index - 1]
        index -= len(_STATIC) + 1
        if 0 <= index < len(self._table):
            return self._table[index]
        raise InvalidHeaderBlock("a field is not in the table")

    def _keep(self, field: tuple[bytes, bytes]) -> None:
        size = len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self._evict(size)
        if size <= self._most_table:
            self._table.appendleft(field)
            self._table_bytes += size

    def _evict(self, size: int) -> None:
        while self._table and self._table_bytes + size > self._most_table:
            name, value = self._table.pop()
            self._table_bytes -= len(name) + len(value) + _ENTRY_BYTES


def _integer(block: bytes, at: int, prefix_bits: int) -> tuple[int, int]:
    """An integer (section 5.1), and the place after it."""
    mask = (1 << prefix_bits) - 1
    value, at = block[at] & mask, at + 1
    if value < mask:
        return value, at
    for shift in range(0, 7 * _LONGEST_INTEGER, 7):
        if at >= len(block):
            break
        byte, at = block[at], at + 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise InvalidHeaderBlock("an integer has no end")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """A string (section 5.2), and the place after it."""
    if at >= len(block):
        raise InvalidHeaderBlock("the block ends within a field")
    is_huffman = block[at] & 0x80
    length, at = _integer(block, at, 7)
    data = block[at : at + length]
    if len(data) < length:
        raise InvalidHeaderBlock("the block ends within a string")
    return (_huffman(data) if is_huffman else data), at + length


def literal(name: bytes, value: bytes) -> bytes:
    """A field that no table keeps (section 6.2.2)."""
    return b"\0" + _length(name) + name + _length(value) + value


def _length(data: bytes) -> bytes:
    size = len(data)
    if size < 0x7F:
        return bytes([size])
    size -= 0x7F
    length = bytearray([0x7F])
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(length) + bytes([size])
