"""Files and folders of results, whichever tool wrote them: recognised by what is in them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kvplan.calibrate.results.outcome import Results, refuse_empty
from kvplan.calibrate.results.readers.aiperf import is_aiperf, read_aiperf
from kvplan.calibrate.results.readers.fields import objects_of, read_json
from kvplan.calibrate.results.readers.guidellm import is_guidellm, read_guidellm
from kvplan.calibrate.results.readers.kvplan_sweep import is_kvplan_sweep, read_kvplan_sweep
from kvplan.calibrate.results.readers.vllm_bench import (
    is_vllm_forward,
    is_vllm_serve,
    is_vllm_sweep,
    read_vllm_forward,
    read_vllm_serve,
    read_vllm_sweep,
    run_files,
)
from kvplan.errors import KvplanError
from kvplan.runs.directory import MANIFEST, TRIALS

_Reader = tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any], str], Results]]

_FILES: Final[tuple[_Reader, ...]] = (
    (is_vllm_serve, read_vllm_serve),
    (is_guidellm, read_guidellm),
    (is_aiperf, read_aiperf),
)
KNOWN: Final = (
    "a folder of `kvplan sweep` or `vllm bench sweep serve`, or the JSON of `vllm bench serve --save-result`, "
    "`vllm bench forward --output-json`, `kvplan load --json`, GuideLLM or AIPerf"
)


def read_results(paths: Sequence[Path]) -> Results:
    """All results of all paths. KvplanError for one that is missing, unknown, or holds nothing that was served."""
    found = Results()
    for path in paths:
        found.add(refuse_empty(_read(path), str(path)))
    return found


def _read(path: Path) -> Results:
    if not path.exists():
        raise KvplanError(f"{path} does not exist.", hint=f"give {KNOWN}")
    if not path.is_dir():
        documents = objects_of(read_json(path))
        if documents is None or not _is_known(documents):
            raise KvplanError(f"{path} holds no result that is known.", hint=f"give {KNOWN}")
        return _read_documents(documents, path)
    if is_kvplan_sweep(path):
        return read_kvplan_sweep(path)
    if is_vllm_sweep(path):
        return read_vllm_sweep(path)
    sweeps = [str(each.parent) for each in sorted(path.glob(f"*/{MANIFEST}"))]
    if sweeps:
        raise KvplanError(
            f"{path} is no run directory; {len(sweeps)} of the folders in it are.",
            hint=f"name those to read: {shlex.join(sweeps[:_MOST_NAMED])}{' ...' if len(sweeps) > _MOST_NAMED else ''}",
        )
    return _read_json_files(path)


_MOST_NAMED: Final = 3


def result_files(path: Path) -> list[Path]:
    """The files that the results at a path are read from."""
    if not path.is_dir():
        return [path]
    if is_kvplan_sweep(path):
        return [each for name in (MANIFEST, TRIALS) if (each := path / name).is_file()]
    return run_files(path) or sorted(path.glob("*.json"))


def _read_json_files(directory: Path) -> Results:
    """A folder of saved results, such as ``--result-dir``'s; other JSON in it is passed over and counted."""
    found = Results()
    for path in result_files(directory):
        documents = objects_of(read_json(path))
        if documents is None or not _is_known(documents):
            found.excluded["a file without a known result"] += 1
        else:
            found.add(_read_documents(documents, path))
    return found


def _is_known(documents: Sequence[Mapping[str, Any]]) -> bool:
    return is_vllm_forward(documents) or any(_reader_of(each) for each in documents)


def _read_documents(documents: Sequence[Mapping[str, Any]], path: Path) -> Results:
    if is_vllm_forward(documents):
        return read_vllm_forward(documents, str(path))
    found = Results()
    for number, document in enumerate(documents, start=1):
        source = str(path) if len(documents) == 1 else f"result {number} of {path}"
        reader = _reader_of(document)
        if reader is None:
            found.excluded["no known result"] += 1
        else:
            found.add(reader(document, source))
    return found


def _reader_of(document: Mapping[str, Any]) -> Callable[[Mapping[str, Any], str], Results] | None:
    return next((read for is_its, read in _FILES if is_its(document)), None)
