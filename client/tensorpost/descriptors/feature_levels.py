"""DirectML feature levels, with the values of `DirectML.h`; each level is a strict superset of those before."""

from __future__ import annotations

import enum
import operator
import re
from typing import Any, cast

from ..values.datatypes import BOOLEANS
from ..values.problems import InvalidParameter, presentable

__all__ = ["NEWEST", "FeatureLevel"]


class FeatureLevel(enum.IntEnum):
    """`DML_FEATURE_LEVEL`: 1_0 to 6_4, with the header's numbers.

    Examples:
        >>> FeatureLevel.parse("2_1") is FeatureLevel.parse("DML_FEATURE_LEVEL_2_1") is FeatureLevel.L2_1
        True
    """

    L1_0 = 0x1000
    L2_0 = 0x2000
    L2_1 = 0x2100
    L3_0 = 0x3000
    L3_1 = 0x3100
    L4_0 = 0x4000
    L4_1 = 0x4100
    L5_0 = 0x5000
    L5_1 = 0x5100
    L5_2 = 0x5200
    L6_0 = 0x6000
    L6_1 = 0x6100
    L6_2 = 0x6200
    L6_3 = 0x6300
    L6_4 = 0x6400

    def __str__(self) -> str:
        return f"{self >> 12}_{(self >> 8) & 0xF}"

    @classmethod
    def parse(cls, text: str | int | FeatureLevel) -> FeatureLevel:
        """Read `2_1`, `2.1`, `DML_FEATURE_LEVEL_2_1` or the header's number.

        Raises:
            InvalidParameter: no such level; the message lists them all.
        """
        value: object = text  # from outside it may be anything
        if isinstance(value, str):
            spelled = re.sub(r"^DML_FEATURE_LEVEL_", "", value.strip().upper()).replace(".", "_")
            wanted = next((level for level in cls if str(level) == spelled), None)
        else:
            try:
                number = None if isinstance(value, BOOLEANS) else operator.index(cast("Any", value))
            except TypeError:
                number = None
            wanted = next((level for level in cls if level == number), None)
        if wanted is None:
            known = ", ".join(map(str, cls))
            found = repr(value[:50]) if isinstance(value, str) else presentable(value)
            raise InvalidParameter(f"feature level {found} does not exist; DirectML has {known}")
        return wanted


NEWEST = max(FeatureLevel)
