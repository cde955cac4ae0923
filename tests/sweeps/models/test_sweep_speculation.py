"""Speculation as an axis of a sweep: what is read, what the engine is given, what rows and commands say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweep_helpers import tiny_plan

from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.speed.steps.step_time import Speed, StepShape, StepTimes
from kvplan.runs.answers.deploy import deployment_of
from kvplan.runs.answers.summary import speculation_gains
from kvplan.runs.columns import Row
from kvplan.runs.rows import empty_row
from kvplan.sweeps.drafting import method_of, read_drafting, with_drafts
from kvplan.sweeps.forecast.drafting import Passes, gain_at
from kvplan.sweeps.options import SweepOptions, with_absolute_paths
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import run_new_sweep
from kvplan.sweeps.worker.metrics import RequestTrace, draft_figures, serving_figures

NGRAM = '{"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2}'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ngram", "is not a JSON object"),
        ("[1]", "is not a JSON object"),
        ('{"method": "eagle"}', "proposes by 'ngram', 'draft_model' or 'mtp'"),
        ('{"num_speculative_tokens": 2}', "proposes by 'ngram', 'draft_model' or 'mtp'"),
        ('{"method": "draft_model"}', "has method 'draft_model' and no model"),
        ('{"method": "ngram", "depth": 2}', "does not know 'depth'"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "'num_speculative_tokens' of --speculative-config"),
        ('{"method": "ngram", "prompt_lookup_max": "2"}', "'prompt_lookup_max' of --speculative-config"),
    ],
)
def test_what_the_engine_has_not_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        read_drafting(text)


def test_the_number_is_the_axis_s_or_the_json_s() -> None:
    text = '{"method": "ngram", "num_speculative_tokens": 3}'
    assert with_drafts({}, text) == {"num_speculative_tokens": "3"}
    assert with_drafts({"num_speculative_tokens": "0,2"}, text) == {"num_speculative_tokens": "0,2"}
    assert with_drafts({}, None) == {}
    assert method_of({"method": "deepseek_mtp"}) == "mtp"


def test_a_draft_model_s_path_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drafter").mkdir()
    written = '{"model": "drafter", "num_speculative_tokens": 2}'
    found = with_absolute_paths({"speculative_config": written})["speculative_config"]
    assert json.loads(found)["model"] == str(tmp_path / "drafter")
    assert with_absolute_paths({"speculative_config": NGRAM}) == {"speculative_config": NGRAM}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"axes": {"num_speculative_tokens": "2"}}, "but not by whom"),
        ({"speculative_config": NGRAM}, "but not how many"),
        ({"speculative_config": NGRAM, "axes": {"num_speculative_tokens": "2"}, "engine": "vllm"}, "kvplan's own"),
    ],
)
def test_half_a_setting_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(KvplanError, match=sentence):
        SweepOptions("gpt2", **options)


def test_rows_say_what_was_accepted_and_bytes_are_as_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = tiny_plan(
        tmp_path,
        num_prompts=4,
        output_len="24",
        seed=5,
        axes={"num_speculative_tokens": "3,0", "max_num_seqs": "4"},
        speculative_config=NGRAM,
    )
    rows = run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="kvplan sweep").rows
    without, drafted = (
        next(row for row in rows if row["num_speculative_tokens"] == number and row["run_number"] == 1)
        for number in (0, 3)
    )
    for row in (without, drafted):
        assert row["status"] == "ok"
        assert row["num_blocks_total"] == row["num_blocks_predicted"]
    assert without["num_drafts"] is None and without["speculative_config"] is None
    assert drafted["pred_output_throughput"] is None
    for row in rows:  # nothing is known of a CPU before it was calibrated, or a trial of the sweep has run
        is_known = row["num_speculative_tokens"] == 0 and row["learned_time_factor"] != 1
        assert (row["pred_output_throughput"] is not None) == is_known == (row["prediction_origin"] is not None)
    assert 0 < drafted["num_drafts"] <= drafted["num_draft_tokens"]
    assert drafted["total_output_tokens"] == without["total_output_tokens"]
    given = json.loads(drafted["speculative_config"])
    assert given == {**json.loads(NGRAM), "num_speculative_tokens": 3}
    commands = deployment_of(drafted, "tiny").commands
    assert f"speculative_config={given!r}" in commands["kvplan"]
    assert "--speculative-config" in commands["vllm"] and "num-speculative" not in commands["vllm"]
    assert "speculative" not in "".join(deployment_of(without, "tiny").commands.values())


def test_a_draft_model_is_in_the_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights, its KV in every block and its buffers; the model itself, which is always right.

    Without drafts there is nothing of it, in an engine of its own.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    drafter = str(tmp_path / "tiny-model" / "config.json")
    tiny_plan(tmp_path)  # writes the model
    drafting = json.dumps({"method": "draft_model", "model": drafter})
    axes = {"num_speculative_tokens": "2,0", "max_num_seqs": "4"}
    plan = tiny_plan(tmp_path, num_prompts=4, output_len="12", seed=5, axes=axes, speculative_config=drafting)
    outcome = run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="kvplan sweep")
    plain, drafted = outcome.rows
    for row, num_models in ((plain, 1), (drafted, 2)):
        assert row["status"] == "ok"
        assert row["num_blocks_total"] == row["num_blocks_predicted"]
        assert row["weights_bytes"] == row["weights_bytes_predicted"] == 4 * num_models * plan.spec.num_parameters
        assert row["block_bytes"] == row["block_bytes_predicted"]
    assert (plain["acceptance_rate"], drafted["acceptance_rate"]) == (None, 1.0)
    assert drafted["block_bytes"] == 2 * plain["block_bytes"]
    (gain,) = outcome.summary["speculation"]
    assert gain["num_speculative_tokens"] == 2


def test_a_layer_of_the_models_own_is_in_the_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights, a layer more in every block, and its buffers."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 48}
    config = {"architectures": ["MiMoForCausalLM"], "vocab_size": 128, "num_nextn_predict_layers": 1} | sizes
    config |= {"max_position_embeddings": 256, "eos_token_id": 0}
    (tmp_path / "tiny-model").mkdir()
    (tmp_path / "tiny-model" / "config.json").write_text(json.dumps(config))
    axes = {"num_speculative_tokens": "2,0", "max_num_seqs": "4"}
    lengths = {"num_prompts": 4, "input_len": "8", "output_len": "12"}
    plan = tiny_plan(tmp_path, axes=axes, speculative_config='{"method": "mtp"}', **lengths)
    plain, drafted = run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="kvplan sweep").rows
    for row in (plain, drafted):
        assert row["status"] == "ok"
        for figure in ("num_blocks", "weights_bytes", "block_bytes"):
            assert row["num_blocks_total" if figure == "num_blocks" else figure] == row[f"{figure}_predicted"]
    assert 2 * drafted["block_bytes"] == 3 * plain["block_bytes"]
    assert drafted["num_draft_tokens"] > 0 and len(drafted["accepted_per_position"].split()) == 2


def test_figures_of_drafts_are_those_between_two_readings() -> None:
    before = {"num_drafts": 2, "num_draft_tokens": 6, "num_accepted_tokens": 3}
    after = {"num_drafts": 6, "num_draft_tokens": 18, "num_accepted_tokens": 9}
    positions = ([2, 1, 0], [5, 3, 1])
    stats = [
        {f"spec_decode_{name}": value for name, value in counts.items()}
        | {"spec_decode_num_accepted_tokens_per_pos": accepted}
        for counts, accepted in zip((before, after), positions, strict=True)
    ]
    assert draft_figures(*stats) == {
        "num_drafts": 4,
        "num_draft_tokens": 12,
        "num_accepted_tokens": 6,
        "acceptance_rate": 0.5,
        "mean_acceptance_length": 2.5,
        "accepted_per_position": "0.750 0.500 0.250",
    }
    assert draft_figures({}, {}) == {}


def test_tokens_of_one_step_are_one_arrival() -> None:
    """As one chunk is in vLLM's benchmark: no gap of nothing between them."""
    trace = RequestTrace("r", 4, 0.0, [1.0, 2.0, 2.0, 2.0, 3.0], finished=True)
    figures = serving_figures([trace], 3.0)
    assert figures["mean_itl_ms"] == 1000.0
    assert figures["mean_tpot_ms"] == 500.0


def clock() -> StepTimes:
    """A step takes 20 ms, and 10 ms for each token."""
    shape = StepShape(0, 1e6, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return StepTimes(shape, Speed(0.02, 0.0, 0.0, 1e30, 2e8, 1e30, 1e30))


def served(**changes: Any) -> Row:
    row: Row = {"completed": 2, "num_steps": 20, "total_input_tokens": 64, "total_output_tokens": 32}
    row |= {"num_draft_tokens": 40, "num_accepted_tokens": 10}
    row.update(changes)  # type: ignore[typeddict-item]
    return row


def test_the_predicted_gain_is_that_of_the_steps() -> None:
    """30 tokens in 20 steps of one sequence, with 2 drafts each: 1.5 tokens in (20 + 30) ms against one in 30."""
    assert gain_at(clock(), served()) == pytest.approx(1.5 * 30 / 50)
    # two sequences in a step: 20 + 6 x 10 ms against 20 + 2 x 10
    assert gain_at(clock(), served(num_steps=10)) == pytest.approx(1.5 * 40 / 80)
    assert gain_at(clock(), served(num_accepted_tokens=0, num_draft_tokens=30, num_steps=30)) == pytest.approx(30 / 40)
    assert gain_at(clock(), served(total_output_tokens=2)) is None, "nothing was decoded"


def test_passes_of_a_drafter_take_their_time() -> None:
    """Beside 50 ms: a pass over 1.5 tokens, or 2.5 of a draft model, and one over one token; 10 ms + 1 ms each."""
    cheap = replace(clock(), speed=replace(clock().speed, step_seconds=0.01, flops=2e9))
    assert gain_at(clock(), served(), Passes(cheap, 0)) == pytest.approx(1.5 * 30 / (50 + 11.5 + 11))
    assert gain_at(clock(), served(), Passes(cheap, 1)) == pytest.approx(1.5 * 30 / (50 + 12.5 + 11))
    one_each = served(num_accepted_tokens=0, num_draft_tokens=30, num_steps=30)
    assert gain_at(clock(), one_each, Passes(cheap, 0)) == pytest.approx(30 / (40 + 11))


def test_the_summary_puts_the_gain_beside_its_prediction() -> None:
    settings = {"gpu_memory_utilization": 0.9, "max_num_seqs": 4, "block_size": 16, "max_model_len": 256}
    settings |= {"max_num_batched_tokens": 512, "dtype": "float32", "kv_cache_dtype": "float32"}

    def row(trial: str, drafts: int, tpot: float, **changes: Any) -> Row:
        found = empty_row()
        found.update(settings, trial_id=trial, status="ok", num_speculative_tokens=drafts, mean_tpot_ms=tpot)  # type: ignore[typeddict-item,call-arg]
        found.update(output_throughput=1.0, device="cpu", run_number=1, request_rate="inf", **changes)  # type: ignore[call-arg]
        return found

    drafted = {"acceptance_rate": 0.5, "pred_speculation_gain": 1.6}
    rows = [row("a", 0, 30.0), row("b", 3, 20.0, **drafted), row("c", 3, 20.0, **drafted)]
    (found,) = speculation_gains(rows)
    assert (found["gain"], found["gain_predicted"]) == (1.5, 1.6)
    assert found["sentence"].endswith(
        "drafts 3: 1.50 times the tokens a second, 1.60 predicted at this acceptance (50 % of the drafts accepted)"
    )
    assert speculation_gains(rows[1:]) == [], "nothing to compare with"
