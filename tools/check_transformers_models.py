"""Runs a small random model of every class of transformers that a test's table names, and says which run, and how.

    python tools/check_transformers_models.py            # the table
    python tools/check_transformers_models.py NAME...    # some models of the tables alone
    python tools/check_transformers_models.py --write    # into profiles/architectures.json

Each model's tokens and log-probabilities are compared with those of its class alone, in float32. It takes about two
minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("agreement", "engine/cases")]

import torch  # noqa: E402
import transformers  # noqa: E402
from small_configs import small_configs  # noqa: E402
from small_models import VOCAB_SIZE  # noqa: E402
from transformers_checkpoints import check_class, config_of, tabled_models  # noqa: E402

from architecture_rows import TABLE, with_ways  # noqa: E402
from kvplan_engine.errors import EngineError  # noqa: E402
from kvplan_engine.transformers_backend.model import TransformersDecoder  # noqa: E402

_FAILURES = (AssertionError, EngineError, RuntimeError, ValueError, TypeError, AttributeError, LookupError)


def configs() -> Iterator[tuple[str, Any]]:
    """Every model by its name in a test's table, and the small configs that transformers has a class for."""
    for name, (class_name, values) in tabled_models().items():
        yield name, lambda class_name=class_name, values=values: config_of(class_name, values)
    for architecture, raw in small_configs().items():
        found = getattr(transformers, architecture, None)
        if found is not None and architecture.endswith("ForCausalLM"):
            of_text = raw | {"vocab_size": VOCAB_SIZE, "pad_token_id": 0, "eos_token_id": 0, "bos_token_id": 0}
            yield architecture, lambda found=found, of_text=of_text: found.config_class.from_dict(of_text)


def outcome(make: Any, folder: Path) -> tuple[str, str, bool]:
    """The architecture, how it ran or why it did not, and whether it did."""
    architecture = "?"
    try:
        config = make()
        architecture = (getattr(config, "architectures", None) or ["?"])[0]
        llm = check_class(config, folder)
        decoder = llm.engine.decoder
        assert isinstance(decoder, TransformersDecoder)
        return llm.engine.model.config.architecture, decoder.way.name, True
    except _FAILURES as problem:
        return architecture, f"{type(problem).__name__}: {problem}".splitlines()[0], False


def check_all(names: list[str]) -> dict[str, str]:
    """How each architecture runs, printed as it goes; of several models of one the slowest way."""
    ways: dict[str, str] = {}
    for name, make in configs():
        if (names and name not in names) or name in ways:
            continue
        with tempfile.TemporaryDirectory() as folder:
            architecture, text, runs = outcome(make, Path(folder) / "model")
        print(f"{name:28} {architecture:32} {text if runs else 'does not run: ' + text[:160]}", flush=True)
        if runs:
            ways[architecture] = max(ways.get(architecture, ""), text, key=len)
    return ways


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models of the tables; default: all")
    parser.add_argument("--write", action="store_true", help="write the table of architectures")
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    ways = check_all(options.names)
    print(f"{len(ways)} architectures run, with transformers {transformers.__version__}")
    if options.write:
        TABLE.write_text(with_ways(TABLE.read_text(encoding="utf-8"), ways), encoding="utf-8")


if __name__ == "__main__":
    main()
