"""What kernels take, kept beside the compiled kernels: the same compiler makes the same of the same source.

Only what compiled without a warning is kept, under a hash of everything that decides the compiler's output, as for the
kernels themselves: source, all that it includes, options, and the compiler by version and size.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

from kernel_matrix import Resources

from kvplan_engine.kernels.cuda.launching.variants import KernelVariant, source_digest
from kvplan_engine.paths import kernel_cache_dir

_digest = cache(source_digest)


def known_resources(
    variant: KernelVariant, compiler: Path, told: Sequence[str], compile_now: Callable[[], Resources]
) -> Resources:
    """``compile_now``'s answer, or the one that it gave before. told: the compiler's version, and its options."""
    parts = (variant.source, variant.kernel, *variant.flags(), _digest(variant.source), *told, _compiler(compiler))
    path = kernel_cache_dir() / "gate" / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}.json"
    if path.is_file():
        return Resources(**json.loads(path.read_text()))
    found = compile_now()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        json.dump(asdict(found), file)
    Path(name).replace(path)
    return found


@cache
def _compiler(path: Path) -> str:
    """Its place and size; a name alone, where only the system's loader knows the place."""
    whole = path.resolve()
    return f"{whole} {whole.stat().st_size}" if whole.is_file() else str(path)
