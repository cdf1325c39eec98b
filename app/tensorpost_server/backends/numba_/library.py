"""The compiled kernels as files of object code: made by `tensorpost warmup`, loaded when the backend opens.

numba compiles the loops once, for a level of CPU rather than for this very one, and what comes out is kept as plain
object code, one file per group of kernels. Loading them takes llvmlite and a few milliseconds. So a server never
compiles and never imports numba, the files may come from a build on another machine, and may lie on a read-only disk.
NumPy computes what needs the kernels of a group that is not compiled.

The files hold machine code, which is run: whoever can write to their folder can run code as the server's user.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from tensorpost.values.extras import install_command

from ...machine import cores
from ..base import CannotOpen
from .instructions import CODES

GROUPS: Mapping[str, tuple[str, ...]] = {
    "expressions": ("expression",),
    "copies": ("runs", "transpose", "gather"),
    "resampling": ("columns_first", "rows_first"),
    "reductions": ("sum_f32", "sum_f16", "sum_u32", "largest_f32", "largest_f16", "largest_u8"),
}
"""The kernels, by what is compiled together: the group that takes longest first."""
RUNNERS = ("compute", "await_helpers", "help_threads")
"""What runs the kernels of a group, compiled with each."""
WIDE = ("expression", "sum_f16", "largest_f32", "largest_f16", "largest_u8")  # those that gain by wider vectors
SYMBOL, WIDE_NAME = "tensorpost_{}", "{}_wide"
_HERE = Path(__file__).parent
_X86_NAMES = ("x86_64", "amd64")
_ARM_NAMES = ("aarch64", "arm64")
_V4_FEATURES = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_V3_FEATURES = ("avx2", "bmi2", "f16c", "fma", "lzcnt", "movbe")


class NotCompiled(CannotOpen):
    """The kernels for this machine are not in the cache; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the kernels are compiled for.

    Attributes:
        cpu: LLVM's name of a CPU or of a level of CPUs.
        needs: features, by LLVM's names, that a CPU must have to run it.
        wide: a level with wider vectors; kernels that gain by them are compiled for it too, and run where it is.
    """

    cpu: str
    needs: tuple[str, ...]
    wide: Target | None = None


def target() -> Target:
    """What is compiled for on this kind of machine: a level that every CPU of the last ten years has.

    x86-64-v3 (AVX2, FMA, F16C; Intel from 2013, AMD from 2015) and plain 64-bit ARM.

    Raises:
        CannotOpen: another kind of machine.
    """
    machine = platform.machine().lower()
    if machine in _X86_NAMES:
        return Target("x86-64-v3", _V3_FEATURES, Target("x86-64-v4", _V4_FEATURES))
    if machine in _ARM_NAMES:
        return Target("generic", ())
    raise CannotOpen(f"no kernels are made for {machine}; only for x86-64 and 64-bit ARM")


def _module(name: str) -> Any:
    """A module of numba or llvmlite, of whose contents no type checker knows.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        package = name.partition(".")[0]
        raise ModuleNotFoundError(f"{package} is not installed: {install_command('numba')}", name=package) from None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise ModuleNotFoundError(f"{package} is not installed: {install_command('numba')}", name=package) from None


def cache_folder() -> Path:
    """Where object code is kept: `NUMBA_CACHE_DIR`, or else the user's cache folder.

    That is `%LOCALAPPDATA%` on Windows, `~/Library/Caches` on macOS, `$XDG_CACHE_HOME` or `~/.cache` elsewhere.

    Raises:
        CannotOpen: there is no home directory and no variable that says another place.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return Path(chosen)
    try:
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise CannotOpen("this user has no home directory: set NUMBA_CACHE_DIR to a folder for the kernels") from None
    return base / "tensorpost"


def object_file(group: str) -> Path:
    """The file of a group for this version of the kernels, of numba and llvmlite, and this kind of machine.

    Raises:
        ImportError: numba or llvmlite is not installed.
        CannotOpen: no kernels are made for this kind of machine, or there is no cache folder.
    """
    goal = target()
    key = hashlib.sha256()
    for part in (sys.platform, platform.machine().lower(), goal.cpu, _version("numba"), _version("llvmlite")):
        key.update(part.encode() + b"\0")
    for source in (_HERE / "library.py", _HERE / "instructions.py", *sorted((_HERE / "kernels").glob("*.py"))):
        key.update(source.read_bytes())
    key.update(" ".join(CODES).encode())
    return cache_folder() / f"kernels-{group}-{goal.cpu}-{key.hexdigest()[:16]}.bin"


def missing_groups(groups: Sequence[str] = tuple(GROUPS)) -> list[str]:
    """The groups, of these, that are not in the cache.

    Raises:
        ImportError: numba or llvmlite is not installed.
        CannotOpen: the cache cannot be read, or no kernels are made for this kind of machine.
    """
    return [group for group in groups if _read(object_file(group)) is None]


def build(groups: Sequence[str], announce: Callable[[str], None]) -> None:
    """Compile groups of kernels into the cache, as many at a time as there are cores, each in a process of its own.

    numba compiles for `target()` then, whatever this CPU has. A group takes 5 to 25 seconds of a core and 600 MB.

    Args:
        groups: what is compiled.
        announce: called with the name of each group that is done, from several threads.

    Raises:
        ImportError: numba is not installed.
        CannotOpen: no kernels are made for this kind of machine, or they cannot be kept in the cache folder.
    """

    def compile_one(group: str) -> None:
        _keep(object_file(group), _object_code(group))
        announce(group)

    with ThreadPoolExecutor(max(1, min(cores(), len(groups)))) as pool:
        for done in [pool.submit(compile_one, group) for group in groups]:
            done.result()


def _object_code(group: str) -> bytes:
    """What `write_object_code` writes, in a process of its own."""
    code = f"from {__name__} import write_object_code; write_object_code({group!r})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)  # noqa: S603 # this interpreter, our words
    if ran.returncode or not ran.stdout:
        said = ran.stderr.decode(errors="replace")
        error = [*re.findall(r"^[\w.]+: .*", said, re.MULTILINE), said.strip()[-200:] or "it wrote no output"][0]
        raise CannotOpen(f"the compilation of {group} ended with status {ran.returncode}: {error}")
    return ran.stdout


def write_object_code(group: str) -> None:
    """Write a group's object code to standard output, in a process that has not used numba yet."""
    sys.stdout.buffer.write(_compile(group, target()))


def _keep(path: Path, code: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    except OSError as error:
        raise _not_kept(path.parent, error) from None
    try:
        os.close(handle)
        try:
            Path(temporary).write_bytes(hashlib.sha256(code).digest() + code)
            Path(temporary).chmod(0o644)  # every user may run it
            Path(temporary).replace(path)  # in one step: no server ever sees half of it
        except OSError as error:
            raise _not_kept(path.parent, error) from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _not_kept(folder: Path, error: OSError) -> CannotOpen:
    return CannotOpen(
        f"the kernels cannot be kept in {folder}: {error.strerror}; set NUMBA_CACHE_DIR to a folder that can be written"
    )


def _compile(group: str, goal: Target) -> bytes:
    """The object code of a group's kernels.

    Raises:
        CannotOpen: numba has already compiled something in this process, for another CPU.
    """
    numba, llvm = _module("numba"), _module("llvmlite.binding")
    names, wide = _names(group), [WIDE_NAME.format(name) for name in GROUPS[group] if name in WIDE and goal.wide]
    config = numba.config
    before = config.CPU_NAME, config.CPU_FEATURES, config.OPT
    # numba would optimise every function by itself, and those inside others again with each of these; once together
    # takes half the time.
    config.CPU_NAME, config.CPU_FEATURES, config.OPT = goal.cpu, "", type(config.OPT)(0)
    try:
        used = importlib.import_module("numba.core.registry").cpu_target.target_context.codegen().magic_tuple()
        if used[1:3] != (goal.cpu, ""):
            raise CannotOpen("numba has compiled for another CPU in this process: run `tensorpost warmup` instead")
        kernels: Mapping[str, Callable[..., None]] = importlib.import_module(f"{__package__}.kernels").KERNELS
        signature = numba.types.void(numba.types.CPointer(numba.types.int64))
        whole: Any = None
        for name in names:
            compiled = numba.cfunc(signature, error_model="numpy", forceinline=True)(kernels[name])
            code = compiled.inspect_llvm().replace(compiled.native_name, SYMBOL.format(name))
            for text in (code, _for_wide_vectors(code, goal)) if name in WIDE else (code,):
                module = llvm.parse_assembly(text)
                whole = module if whole is None else whole
                if whole is not module:
                    whole.link_in(module)
    finally:
        config.CPU_NAME, config.CPU_FEATURES, config.OPT = before
    # Small: constants are read relative to the code, not through a 64-bit address each, which cost exp a fifth.
    machine = llvm.Target.from_triple(whole.triple).create_target_machine(
        cpu=goal.cpu, features="", opt=3, reloc="pic", codemodel="small", jit=True
    )
    symbols = {SYMBOL.format(name) for name in (*names, *wide)}
    for function in whole.functions:
        if not function.is_declaration and function.name not in symbols:
            function.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(whole, passes)
    foreign = [f.name for f in whole.functions if f.is_declaration and not f.name.startswith("llvm.")]
    assert not foreign, f"the kernels call {foreign}, which exists only while numba is loaded"
    return machine.emit_object(whole)


def _names(group: str) -> tuple[str, ...]:
    return (*GROUPS[group], *RUNNERS)


def _for_wide_vectors(code: str, goal: Target) -> str:
    """The same functions for the wider level of CPU under names of their own; nothing if there is no such level."""
    if goal.wide is None:
        return ""
    names = re.findall(r'^define .*?@("[^"]+"|[\w.$]+)\(', code, re.MULTILINE)
    renamed = {name: f'"{WIDE_NAME.format(name.strip(chr(34)))}"' for name in names}
    code = re.sub(r'@("[^"]+"|[\w.$]+)', lambda found: "@" + renamed.get(found[1], found[1]), code)
    attributes = f'"target-cpu"="{goal.wide.cpu}" "prefer-vector-width"="512"'
    return re.sub(r"^(define .*?\))([^)]*)\{$", rf"\1\2{attributes} {{", code, flags=re.MULTILINE)


def _read(path: Path) -> bytes | None:
    """The object code; None if there is none, or not all of it.

    Raises:
        CannotOpen: it cannot be read, or is not ours.
    """
    try:
        with path.open("rb") as file:
            owner = os.fstat(file.fileno()).st_uid
            if sys.platform != "win32" and owner not in (0, os.getuid()):
                raise CannotOpen(
                    f"{path} belongs to user {owner}, and code of other users is not run: remove it, or set "
                    "NUMBA_CACHE_DIR"
                )
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CannotOpen(f"{path} cannot be read: {error.strerror}; set NUMBA_CACHE_DIR to another folder") from None
    digest, code = content[:32], content[32:]
    return code if hashlib.sha256(code).digest() == digest else None


def _not_compiled(folder: Path) -> str:
    return f"its kernels are not compiled: run `tensorpost warmup` once as this user (looked in {folder})"


CompiledKernel = Callable[[int], None]


def address_of(kernel: CompiledKernel) -> int:
    """Where the kernel's code begins."""
    return ctypes.cast(cast("Any", kernel), ctypes.c_void_p).value or 0


def load() -> Mapping[str, CompiledKernel]:
    """The kernels that are compiled: functions of the address of their parameters that let go of the interpreter lock.

    Raises:
        ImportError: numba or llvmlite is not installed.
        NotCompiled: none is in the cache.
        CannotOpen: the cache cannot be read, this CPU cannot run them, or no kernels are made for such machines.
    """
    kernels: dict[str, CompiledKernel] = {}
    for group in GROUPS:
        path = object_file(group)
        if path not in _LOADED:
            code = _read(path)
            if code is None:
                continue
            _LOADED[path] = _load(group, code)
        kernels |= _LOADED[path]
    if not kernels:
        raise NotCompiled(_not_compiled(cache_folder()))
    return kernels


def _load(group: str, code: bytes) -> Mapping[str, CompiledKernel]:
    llvm = _module("llvmlite.binding")
    goal = target()
    has = llvm.get_host_cpu_features()
    missing = [feature for feature in goal.needs if not has.get(feature)]
    if missing:
        raise CannotOpen(f"this CPU has no {', '.join(missing)}, which {goal.cpu} code needs")
    for part in ("target", "asmprinter"):
        getattr(llvm, f"initialize_native_{part}")()
    empty = llvm.parse_assembly("")
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=goal.cpu, features="", jit=True)
    engine = llvm.create_mcjit_compiler(empty, machine, use_lmm=True)  # llvmlite's memory: constants beside the code
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _KEPT.append(engine)  # its memory is the code
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    wide = goal.wide is not None and all(has.get(feature) for feature in goal.wide.needs)
    symbols = {name: SYMBOL.format(WIDE_NAME.format(name) if wide and name in WIDE else name) for name in _names(group)}
    return {name: kind(engine.get_function_address(symbol)) for name, symbol in symbols.items()}


_KEPT: list[Any] = []
_LOADED: dict[Path, Mapping[str, CompiledKernel]] = {}
