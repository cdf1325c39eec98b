"""Which versions of a model are served: `version_policy` of Triton's ModelConfig.

Source: Triton's "Version Policy" (docs/user_guide/model_configuration.md of the server) and `ModelVersionPolicy` of
model_config.proto. The default is the latest version.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from tensorpost.values.problems import InvalidParameter

LARGEST_VERSION = 2**31 - 1
"""The largest number of a version."""

_EXPECTED = '{"latest": {"num_versions": 1}}, {"all": {}}, or {"specific": {"versions": [1, 2]}}'


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which versions of a model are served.

    Attributes:
        kind: the latest ones, all of them, or those that are named.
        count: how many of the latest ones.
        versions: the numbers of those that are named.
    """

    kind: Literal["latest", "all", "specific"] = "latest"
    count: int = 1
    versions: tuple[int, ...] = ()

    def choose(self, versions: Collection[int]) -> Sequence[int]:
        """The versions that are served of these, in ascending order.

        Raises:
            InvalidParameter: one that is named is not among them.
        """
        if self.kind == "specific":
            missing = [each for each in self.versions if each not in versions]
            if missing:
                known = ", ".join(map(str, sorted(versions)))
                raise InvalidParameter(
                    f"config.version_policy names version {missing[0]}, and the model has the versions {known}",
                    extra={"parameter": "config"},
                )
            return sorted({*self.versions})
        return sorted(versions) if self.kind == "all" else sorted(versions)[-self.count :]


def read_version_policy(config: Mapping[str, Any] | None) -> VersionPolicy | None:
    """The policy of a model's configuration; None if it says nothing of it.

    Raises:
        InvalidParameter: it is malformed.
    """
    policy: object = None if config is None else config.get("version_policy")
    if not policy:
        return None
    members = _object(policy)
    kind = next(iter(members), "")
    given = _object(members.get(kind))
    if len(members) == 1 and isinstance(members[kind], Mapping):
        if kind == "all" and not given:
            return VersionPolicy("all")
        if kind == "latest" and given.keys() <= {"num_versions"}:
            count = version_number(given.get("num_versions", 1))
            if count is not None:
                return VersionPolicy("latest", count)
        if kind == "specific" and given.keys() <= {"versions"} and isinstance(given.get("versions"), list):
            numbers = [version_number(each) for each in cast("list[object]", given["versions"])]
            known = tuple([number for number in numbers if number is not None])
            if known and len(known) == len(numbers):
                return VersionPolicy("specific", versions=known)
    raise InvalidParameter(
        f"config.version_policy is {str(policy)[:80]!r}; it must be {_EXPECTED}, with numbers from 1 to "
        f"{LARGEST_VERSION:,}",
        extra={"parameter": "config"},
    )


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def policy_document(versions: Sequence[str]) -> dict[str, Any]:
    """The policy that serves these versions, as a configuration has it: the default for one of them."""
    if len(versions) == 1:
        return {"latest": {"num_versions": 1}}
    return {"specific": {"versions": [int(version) for version in versions]}}


def version_number(value: object) -> int | None:
    """The number of a version; decimal digits are one too, as JSON of protobuf has them. None if it is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(LARGEST_VERSION)):
        value = int(value) if value[0] != "0" else 0  # a version has one text
    return value if type(value) is int and 1 <= value <= LARGEST_VERSION else None
