"""A model's own MTP layer drafts: what torch says it drafts, and the tokens are those without it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from covering import covering_part
from engine_answers import small_llm
from guessing import LIMITS, prompts
from matrix_cells import CELLS, Cell, Watch, add_greedy, check_drafted, check_in_turn, greedy_tokens, set_up
from multi_token_models import MULTI_TOKEN, MultiTokenCheckpoint
from safetensors.torch import load_file
from small_models import greedy

from kvplan_engine import LLM, BeamSearchParams, EngineError, SamplingParams
from kvplan_engine.description.kept_units import kept_units
from kvplan_engine.paths import model_profile_folders
from kvplan_engine.requests.step_plan import StepPlan

NUM_TOKENS = 24
CHUNKS = {"max_num_batched_tokens": 16, "max_num_seqs": 3, "block_size": 4}
GRID = covering_part(
    [(name, cell) for name in MULTI_TOKEN for cell in CELLS], strength=2, values_of=lambda c: (c[0], *c[1].values)
)


def load(path: Path, number: int | None = 3, **settings: Any) -> LLM:
    drafting = None if number is None else {"method": "mtp", "num_speculative_tokens": number}
    return small_llm(path, **LIMITS | {"speculative_config": drafting} | settings)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MultiTokenCheckpoint]:
    folder = tmp_path_factory.mktemp("multi-token")
    return {name: MultiTokenCheckpoint(name, folder) for name in MULTI_TOKEN}


@pytest.fixture(scope="module")
def expected(models: dict[str, MultiTokenCheckpoint]) -> dict[str, list[list[int]]]:
    return {name: greedy(each.model, prompts(), NUM_TOKENS) for name, each in models.items()}


@pytest.fixture(scope="module")
def loaded() -> Iterator[dict[str, LLM]]:
    """Each model is loaded once; the cells are reconfigurations of it."""
    engines: dict[str, LLM] = {}
    yield engines
    for llm in engines.values():
        llm.close()


def record_drafts(llm: LLM) -> list[tuple[list[int], list[int]]]:
    """The known tokens of each sequence that verifies drafts from now on, and the drafts."""
    found: list[tuple[list[int], list[int]]] = []
    runner: Any = llm.engine.serving.runner
    fill: Callable[[StepPlan], None] = runner._drafts.fill

    def recording(plan: StepPlan) -> None:
        fill(plan)
        for item in plan.chunks:
            if item.num_drafts:
                found.append((list(item.sequence.token_ids), list(item.sequence.draft_token_ids)))

    runner._drafts.fill = recording
    return found


@pytest.mark.parametrize("name", MULTI_TOKEN)
@pytest.mark.parametrize("settings", [{}, CHUNKS], ids=["plain", "chunks"])
def test_drafts_are_those_of_the_definition(
    models: dict[str, MultiTokenCheckpoint], expected: dict[str, list[list[int]]], name: str, settings: dict[str, Any]
) -> None:
    """Written in torch from vLLM's files, without a cache; behind drafts that were right and behind wrong ones."""
    with load(models[name].path, **settings) as llm:
        drafts = record_drafts(llm)
        requests = add_greedy(llm.engine, prompts(), NUM_TOKENS)
        Watch(llm.engine).run()
        assert greedy_tokens(requests) == expected[name]
        assert len(drafts) > 20 and {len(each) for _, each in drafts} >= {3}
        for token_ids, found in drafts:
            assert found == models[name].drafts(token_ids, len(found)), token_ids
        check_drafted(llm)
        stats = llm.get_stats()
        positions = stats["spec_decode_num_accepted_tokens_per_pos"]
        assert sum(positions) == stats["spec_decode_num_accepted_tokens"] and positions[0] >= positions[1]


@pytest.mark.parametrize(("name", "cell"), GRID, ids=str)
def test_greedy_tokens_are_those_of_transformers(
    models: dict[str, MultiTokenCheckpoint],
    expected: dict[str, list[list[int]]],
    loaded: dict[str, LLM],
    tmp_path: Path,
    name: str,
    cell: Cell,
) -> None:
    if name not in loaded:
        loaded[name] = load(models[name].path)
    llm = loaded[name]
    set_up(llm, cell, tmp_path, pool_tokens=96)
    watch = Watch(llm.engine)
    check_in_turn(llm, watch, cell, prompts(), expected[name])
    check_drafted(llm)


def test_drawn_tokens_are_those_without_drafts(models: dict[str, MultiTokenCheckpoint]) -> None:
    """Samples of one prompt share its last block, whose MTP KV is the first one's."""
    params = SamplingParams(n=3, temperature=0.8, seed=3, top_p=0.9, max_tokens=20, ignore_eos=True, prompt_logprobs=1)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts()]
    with load(models["mimo"].path, None) as plain, load(models["mimo"].path, max_num_batched_tokens=48) as drafting:
        want, found = (each.generate(asked, params) for each in (plain, drafting))
        assert drafting.get_stats()["spec_decode_num_accepted_tokens"] > 0
    for one, other in zip(found, want, strict=True):
        assert [each.token_ids for each in one.outputs] == [each.token_ids for each in other.outputs]


def test_beams_have_no_drafts(models: dict[str, MultiTokenCheckpoint]) -> None:
    beams = BeamSearchParams(beam_width=2, max_tokens=12)
    searched = []
    for number in (None, 2):
        with load(models["mimo"].path, number, block_size=4) as llm:
            llm.engine.add_request("beside", prompts()[0], SamplingParams(max_tokens=16, temperature=0.0))
            searched.append(llm.engine.add_beam_search("beams", prompts()[1], beams))
            while llm.engine.has_unfinished_requests():
                llm.engine.step()
    assert [each.tokens for each in searched[0].beams.finished] == [each.tokens for each in searched[1].beams.finished]


def test_steps_beyond_a_budget_keep_what_was_handed_on(models: dict[str, MultiTokenCheckpoint]) -> None:
    """More sequences wait with drafts than a step has tokens for."""
    with load(models["mimo"].path, 3, max_num_batched_tokens=9, max_num_seqs=6) as llm:
        drafts = record_drafts(llm)
        asked = [prompt[:length] for prompt in prompts() for length in (9, 14)]
        assert greedy_tokens(add_and_run(llm, asked)) == greedy(models["mimo"].model, asked, NUM_TOKENS)
        assert all(found == models["mimo"].drafts(known, len(found)) for known, found in drafts)


def add_and_run(llm: LLM, asked: list[list[int]]) -> Any:
    requests = add_greedy(llm.engine, asked, NUM_TOKENS)
    Watch(llm.engine).run()
    return requests


@pytest.mark.parametrize("name", MULTI_TOKEN)
def test_its_bytes_are_in_the_account(models: dict[str, MultiTokenCheckpoint], name: str) -> None:
    """A layer more in each block, whose weights are counted."""
    with load(models[name].path, None) as plain, load(models[name].path) as drafting:
        alone, both = plain.engine.memory, drafting.engine.memory
        model = drafting.engine.model.config
        layer = models[name].row.layer.format(model.num_layers) + "."
        stored = load_file(models[name].path / "model.safetensors").items()
        elements = sum(tensor.numel() for tensor_name, tensor in stored if tensor_name.startswith(layer))
        assert both.weight_bytes - alone.weight_bytes == 4 * elements
        layers = model.num_layers
        assert both.block_bytes * layers == alone.block_bytes * (layers + 1)
        elements = sum(unit.row_elements for unit in kept_units(model)) // layers
        assert both.block_bytes - alone.block_bytes == elements * both.block_size * 4
        drafting.engine.reconfigure(speculative_config=None)
        assert drafting.engine.memory.block_bytes == alone.block_bytes
        drafting.engine.reconfigure(speculative_config={"method": "mtp", "num_speculative_tokens": 1})
        assert greedy_tokens(add_and_run(drafting, prompts())) == greedy(models[name].model, prompts(), NUM_TOKENS)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tensor_parallel_size": 2}, "speculative_config 'mtp' runs in one process"),
        ({"model_impl": "transformers"}, "speculative_config 'mtp' is for the engine's own decoder"),
    ],
)
def test_what_it_does_not_go_with_is_one_sentence(
    models: dict[str, MultiTokenCheckpoint], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(EngineError, match=sentence):
        load(models["mimo"].path, **settings)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gpt2", "the config of this GPT2LMHeadModel names no layer for multi-token prediction"),
        ("qwen3.5-27b", "does not run the layers for multi-token prediction of Qwen3_5ForConditionalGeneration"),
        ("glm-5.1", "does not run the layers for multi-token prediction of GlmMoeDsaForCausalLM"),
        ("step-3.7-flash", "does not run Step3p7ForConditionalGeneration"),
    ],
)
def test_models_without_are_refused_by_name(name: str, sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        load(name, load_format="dummy")  # type: ignore[arg-type]


def test_several_layers_and_gguf_files_are_refused(tmp_path: Path) -> None:
    config = json.loads((model_profile_folders()[0] / "mimo-7b-base.json").read_text())["config"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 3}))
    with pytest.raises(EngineError, match="does not run 3 of the layers for multi-token prediction of MiMo"):
        load(tmp_path, load_format="dummy")


def test_an_engine_started_without_cannot_be_given_one(models: dict[str, MultiTokenCheckpoint]) -> None:
    with load(models["mimo"].path, None) as llm, pytest.raises(EngineError, match="without the layer for multi-token"):
        llm.engine.reconfigure(speculative_config={"method": "mtp", "num_speculative_tokens": 2})
