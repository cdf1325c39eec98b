"""Writes docs/onnx-versions.md: what `onnx_versions` counted, by release, reason, operator and version."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .onnx_versions import Case, Known

__all__ = ["page"]

BEGIN = """# ONNX's node tests of every release

Each release of the package onnx publishes node tests as files: a model, its inputs, and the outputs that are expected.
A release has tests of the operators' newest versions only, so those of older versions are in older releases.
`make onnx-versions` downloads the releases' wheels into `build/`, and has ONNX's own runner (`onnx.backend.test`) send
each case as a model to a running server. Tolerances are the runner's. A case counts for the first release that had
these bytes; the cases of the newest release are those that the installed package generates.
`make onnx-versions BACKENDS=cuda` does the same on a GPU.

The runner reads the files with two exceptions: a case of 1.0 is a node, of which a model of opset 2 is made; and before
1.19 files call bfloat16 uint16, and are read as what the model declares. The tensors of a sequence are compared one by
one, since the runner does not compare scalars in it.
"""


def page(cases: Sequence[Case], results: Mapping[str, Mapping[str, str]], lines: Sequence[Known]) -> str:
    """The text of the page.

    Args:
        cases: every case.
        results: the reason why a case fails, by backend and by its key; empty if it passes.
        lines: what is said of the failures.
    """
    failed = {case.key for case in cases if any(found[case.key] for found in results.values())}
    parts = [BEGIN, *_by_release(cases, results), *_by_reason(cases, failed, lines)]
    return "\n".join([*parts, *_by_operator(cases, failed), *_untested(cases), *_named(cases, failed, lines)])


def _by_release(cases: Sequence[Case], results: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    yield "## By release\n"
    yield f"| onnx | cases that it was the first to have | {' | '.join([f'passed on {name}' for name in results])} |"
    yield "| --- |" + " ---: |" * (1 + len(results))
    for release in (*dict.fromkeys([case.release for case in cases]), ""):
        there = [case for case in cases if release in ("", case.release)]
        passed = [sum([not found[case.key] for case in there]) for found in results.values()]
        yield f"| {release or 'together'} | {len(there):,} | {' | '.join([f'{count:,}' for count in passed])} |"
    yield ""


def _by_reason(cases: Sequence[Case], failed: set[str], lines: Sequence[Known]) -> Iterator[str]:
    yield "## Why cases fail\n\n| reason | cases |\n| --- | ---: |"
    count = Counter([_line(case, lines).heading for case in cases if case.key in failed])
    for heading in dict.fromkeys([line.heading for line in lines]):
        yield f"| {heading} | {count[heading]} |"
    yield ""


def _by_operator(cases: Sequence[Case], failed: set[str]) -> Iterator[str]:
    yield "## By operator and version\n"
    yield "Versions are the opsets that brought them. A number alone is that of the cases, all of which pass on every"
    yield "backend above. Cases of a function's nodes (`_expanded`) count for the function, and those of several nodes"
    yield "for the first one.\n"
    yield "| operator | passed, by version |\n| --- | --- |"
    found: dict[str, dict[int, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        found[case.operator][case.version].append(case.key not in failed)
    for operator, versions in sorted(found.items(), key=lambda row: ("." in row[0], row[0])):
        texts = list[str]()
        for version, passed in sorted(versions.items()):
            right = f"{sum(passed)} of {len(passed)}" if not all(passed) else f"{len(passed)}"
            texts.append(f"{version or 'experimental'}: {right}")
        yield f"| {operator} | {', '.join(texts)} |"
    yield ""


def _untested(cases: Sequence[Case]) -> Iterator[str]:
    from onnx.defs import get_all_schemas_with_history

    tested = {(case.operator, case.version) for case in cases}
    left: dict[str, list[int]] = defaultdict(list)
    count = 0
    for schema in sorted(get_all_schemas_with_history(), key=lambda each: (each.name, each.since_version)):
        if not schema.domain and not schema.deprecated:
            count += 1
            if (schema.name, schema.since_version) not in tested:
                left[schema.name].append(schema.since_version)
    listed = "; ".join([f"{name} {', '.join(map(str, versions))}" for name, versions in left.items()])
    untested = sum([len(versions) for versions in left.values()])
    yield "## Versions without a case\n"
    yield f"No release has a node test of {untested} of the {count} versions of the operators of ONNX's own domain:"
    yield f"{listed}.\n"
    yield "`tests/onnx/test_versions.py` compares the versions that tensorpost computes itself with ONNX Runtime, and"
    yield "those before opset 7 with later ones.\n"


def _named(cases: Sequence[Case], failed: set[str], lines: Sequence[Known]) -> Iterator[str]:
    yield "## Each failure\n"
    yield "`benchmarks/onnx_version_failures.txt` says why; the command fails if another case fails, or if one of these"
    yield "passes. The releases are those that were the first to have the case.\n"
    for heading in dict.fromkeys([line.heading for line in lines]):
        reasons: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for case in cases:
            if case.key in failed and (line := _line(case, lines)).heading == heading:
                reasons[line.reason][case.name].append(case.release)
        yield f"### {heading}\n"
        for reason, names in reasons.items():
            listed = "; ".join([f"`{name}` ({', '.join(releases)})" for name, releases in names.items()])
            yield f"* {reason[:1].upper()}{reason[1:]}: {listed}."
        yield ""


def _line(case: Case, lines: Sequence[Known]) -> Known:
    found = next((line for line in lines if line.names(case)), None)
    if found is None:
        raise SystemExit(f"{case.key} fails, and onnx_version_failures.txt does not say why")
    return found
