"""ModelOpt's file beside a config.json, which releases before 0.31 wrote instead of a ``quantization_config``.

vLLM 0.33.0 takes it where config.json has none (get_config of vllm/transformers_utils/config.py), and where it says
mixed precision without the list of layers (get_quant_config of vllm/model_executor/model_loader/weight_utils.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.files import LARGEST_CONFIG_BYTES, read_json

FILE_NAME: Final = "hf_quant_config.json"


def is_wanted(config: Mapping[str, Any]) -> bool:
    """Whether the file, if there is one, says what this config does not."""
    section = config.get("quantization_config")
    if section is None:
        return True
    is_mixed = isinstance(section, Mapping) and str(section.get("quant_algo")).upper() == "MIXED_PRECISION"
    return is_mixed and "quantized_layers" not in section


def with_file(config: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """Return ``config`` with what the file at ``path`` says, where there is one that is wanted.

    KvplanError where it is no JSON object.
    """
    if path is None or not is_wanted(config) or not path.is_file():
        return config
    found = read_json(path, LARGEST_CONFIG_BYTES, hint="correct it, or take it away")
    if not isinstance(found, dict):
        raise KvplanError(f"{path} is not a JSON object.", hint="correct it, or take it away")
    return {**config, "quantization_config": found}
