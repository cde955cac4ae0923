"""Counts generated checkpoints in mixed formats twice: kvplan's bytes, and those of vLLM's modules one by one.

    python tools/check_quantization.py --count 10000      prints how many agree, and every case that does not

    python tools/check_quantization.py --profiles         the same of every quantized profile, as transformers builds it

The models are small ones that are listed by hand; ``--transformers`` first compares each list with the model that
transformers builds on the meta device. Cases that vLLM would refuse, because a merged module's parts are in different
formats, have no right answer and are counted apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from kvplan.catalog.models import find_profile, profiles, read_profile
from kvplan.catalog.reader import read_config
from kvplan.estimate.weights import size_weights
from quantization_cases.generate import make_case
from quantization_cases.models import MODELS, check_against_transformers
from quantization_cases.profiles import quantization_of, served_profile, written_out
from quantization_cases.rules import RefusedError, count_bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case: kvplan's bytes and the other count; None for a checkpoint that vLLM refuses."""

    seed: int
    model: str
    loader: str
    planned: int
    counted: int | None

    @property
    def agrees(self) -> bool:
        return self.planned == self.counted


def check_case(seed: int) -> Outcome:
    """Count the case of this number twice."""
    model, section = make_case(seed)
    try:
        counted = count_bytes(model, section)
    except RefusedError:
        counted = None
    spec = read_config({**model.config, "quantization_config": section}, model_id=model.name)
    return Outcome(seed, model.name, section["quant_method"], size_weights(spec, "bfloat16").total_bytes, counted)


def _check_models() -> bool:
    """Whether each hand-written list has the elements of transformers' model."""
    good = True
    for model in MODELS:
        listed, built = check_against_transformers(model)
        print(f"{model.name}: {listed:,} elements listed, {built:,} in transformers")
        good &= listed == built
    return good


def check_profile(name: str) -> Outcome:
    """Count a shipped profile twice. Raises what transformers raises where it has no class for it."""
    profile = find_profile(name)
    section = quantization_of(profile["config"]) if profile is not None else None
    assert profile is not None and section is not None, "only a quantized profile has formats to count"
    model = served_profile(name, profile["config"])
    counted = count_bytes(model, written_out(section, model))
    planned = size_weights(read_profile(profile), "bfloat16").total_bytes
    return Outcome(0, name, section["quant_method"], planned, counted)


def _check_profiles() -> bool:
    """Whether every quantized profile that transformers builds agrees; names those that it does not build."""
    good = True
    for profile in profiles():
        if quantization_of(profile["config"]) is None:
            continue
        try:
            outcome = check_profile(profile["name"])
        except (ValueError, KeyError, AttributeError) as error:
            print(f"{profile['name']}: not built by transformers ({str(error)[:60]}...)")
            continue
        good &= outcome.agrees
        print(f"{outcome.model}: {outcome.planned:,} planned, {outcome.counted:,} counted")
    return good


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="how many that vLLM loads (default 10000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--transformers", action="store_true", help="compare the models with transformers' first")
    parser.add_argument("--profiles", action="store_true", help="count every quantized profile that ships instead")
    parser.add_argument("--show", type=int, help="print one case and stop")
    arguments = parser.parse_args(words)
    if arguments.show is not None:
        model, section = make_case(arguments.show)
        print(model.name, json.dumps(section, indent=1), check_case(arguments.show), sep="\n")
        return 0
    if arguments.profiles:
        return 0 if _check_profiles() else 1
    good = not arguments.transformers or _check_models()
    sized, refused = list[Outcome](), 0
    for seed in count(arguments.first):
        if len(sized) == arguments.count:
            break
        outcome = check_case(seed)
        if outcome.counted is None:
            refused += 1
        else:
            sized.append(outcome)
    wrong = [outcome for outcome in sized if not outcome.agrees]
    for outcome in wrong[:20]:
        print(outcome)
    print("cases by loader:", dict(Counter(outcome.loader for outcome in sized)))
    print(
        f"{len(sized):,} cases: kvplan = independent count in {len(sized) - len(wrong):,}; "
        f"{refused:,} more that vLLM refuses"
    )
    return 0 if good and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
