"""Which CUDA sources there are, and one compiled form of one of them: a source with its compile-time shape."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from kvplan_engine.errors import EngineError
from kvplan_engine.paths import source_dir

SCALAR_NAMES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float8_e4m3fn: "float8",
    torch.int8: "int8",
}
"""csrc/cuda/types.cuh's name of each storage type."""

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class CudaKernelError(EngineError):
    """A CUDA kernel cannot be compiled, loaded or launched here."""


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """``kernel`` of ``source``, compiled with each of ``defines`` as KVPLAN_<NAME>=<value>.

    only_for: the architecture whose own instructions it has, such as sm_90a; empty for a kernel of any.
    """

    source: str
    kernel: str
    defines: tuple[tuple[str, str | int], ...] = ()
    only_for: str = ""

    def flags(self) -> tuple[str, ...]:
        """The defines as compiler options, the same for nvcc, NVRTC and a host compiler."""
        return tuple(f"-DKVPLAN_{name}={value}" for name, value in self.defines)

    def label(self) -> str:
        """A name for people and for files: decode_mma-bfloat16-bfloat16-128-..."""
        return "-".join((self.kernel, Path(self.source).stem, *(str(value) for _, value in self.defines)))


@cache
def variant(source: str, kernel: str, **defines: str | int | torch.dtype) -> KernelVariant:
    """A KernelVariant with lower-case names and dtypes instead of macro names and type names."""
    named = tuple(
        (name.upper(), scalar_name(value) if isinstance(value, torch.dtype) else value)
        for name, value in defines.items()
    )
    return KernelVariant(source, kernel, named)


@cache
def write_variant(
    scalar: torch.dtype,
    cache: torch.dtype,
    head_size: int,
    block_size: int,
    rotary: int,
    kernel: str = "write_kv",
    value_size: int | None = None,
) -> KernelVariant:
    """The write kernel of one shape; ``rotary`` leading elements of a head rotate.

    value_size: where values are of another size than keys; 0: they are the beginnings of the keys.
    """
    if head_size % 8 or rotary % 2 or (value_size or 0) % 8:
        raise CudaKernelError(
            f"the CUDA write kernel does not support heads of {head_size} elements of which {rotary} rotate"
        )
    return variant(
        "attention/cache/write_kv.cu",
        kernel,
        scalar=scalar,
        cache=cache,
        head_size=head_size,
        block_size=block_size,
        rotary=rotary,
        **({} if value_size is None else {"value_size": value_size}),
    )


def scalar_name(dtype: torch.dtype) -> str:
    """The kernels' name for a storage type. CudaKernelError for an unsupported type."""
    if dtype not in SCALAR_NAMES:
        raise CudaKernelError(
            f"the CUDA kernels do not support {str(dtype).removeprefix('torch.')}",
            hint="use float16, bfloat16 or float32, and for the KV cache also fp8 or int8_per_token_head",
        )
    return SCALAR_NAMES[dtype]


def source_digest(source: str | Path) -> str:
    """Hash of a source, relative to csrc/cuda, and of what it includes: what a cached binary must be built from."""
    digest = hashlib.sha256()
    for path in with_includes(source_dir() / "cuda" / source):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def with_includes(source: Path) -> list[Path]:
    """``source``, and every file that it includes by name, directly or not; one under an #if counts in any case."""
    found = [source.resolve()]
    for path in found:  # which grows meanwhile
        names = _INCLUDE.findall(path.read_text(encoding="utf-8"))
        found += [each for name in names if (each := (path.parent / name).resolve()) not in found]
    return found
