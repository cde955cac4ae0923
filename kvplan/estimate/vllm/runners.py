"""vLLM's second model runner ("Model Runner V2"): which models run in it where nothing is said, and what it keeps.

It replaces vllm/v1/worker/gpu_model_runner.py by vllm/v1/worker/gpu/, model by model from 0.22 on. Its profile run is
another one (kvplan.estimate.vllm.activation), and it keeps its requests' state on the GPU. VLLM_USE_V2_MODEL_RUNNER,
which overrides the release's choice, is not read here.
"""

from __future__ import annotations

from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.speculation.heads import dspark_config
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.vllm.encoders import ENCODERS
from kvplan.settings import FilledSettings, ServingSettings

_TOKEN_LISTS = 3 * 1024 + 128 + 1024 + 129 + 128
"""Numbers of 4 bytes for each request: tokens that are allowed, and biases with their tokens (1024 each), stop tokens,
bad words and where they begin, tokens whose logprobs are asked for (vllm/v1/worker/gpu/sample/: logit_bias.py,
bad_words.py, logprob.py, read in 0.27.0 to 0.33.0)."""

_READS_HIDDEN_STATES = ("eagle", "eagle3", "mtp")


def in_second_runner(spec: ModelSpec, settings: ServingSettings, release: VllmRelease) -> bool:
    """Whether ``release`` runs ``spec`` with ``settings`` in its second model runner where nothing is said.

    What kvplan has no setting for (dual batch overlap, sequence parallelism, plugins of logits processors, ...) is as
    it is by default, and would leave some releases with the first runner.
    """
    if spec.drafter is not None and spec.drafter.method == "mtp" and dspark_config(spec) is not None:
        return True  # DSpark is in that runner alone (VllmConfig.use_v2_model_runner, read in 0.25.1 to 0.33.0)
    return _is_for_model(spec, release) and _runs_drafter(spec, settings, release)


def _is_for_model(spec: ModelSpec, release: VllmRelease) -> bool:
    policy, is_listed = release.second_runner, spec.architecture in release.second_runner_models
    if policy == "listed":
        return is_listed and (release.second_runner_quantized or spec.quantization is None)
    if policy == "dense":
        return is_listed or not (spec.is_mixture or spec.has_state)
    return policy == "all"


def _runs_drafter(spec: ModelSpec, settings: ServingSettings, release: VllmRelease) -> bool:
    if spec.drafter is None:
        return True
    method = spec.drafter.method
    has_stages = settings.pipeline_parallel_size > 1
    if method == "eagle3" and has_stages and not release.second_runner_eagle3_stages:
        return False
    return method in release.second_runner_drafters


def embedded_step_bytes(spec: ModelSpec, settings: FilledSettings) -> int:
    """Return the embedded tokens of one step that the second runner keeps on the first stage of a model that sees.

    ``inputs_embeds`` of vllm/v1/worker/gpu/mm/encoder_runner.py, EncoderRunner (read in 0.27.1, 0.28.0 and 0.33.0).
    """
    if settings.language_model_only or not any(extra.kind in ENCODERS for extra in spec.extras):
        return 0
    return settings.max_num_batched_tokens * spec.hidden_size * element_bytes(settings.dtype)


def kept_state_bytes(spec: ModelSpec, settings: FilledSettings) -> int:
    """What the second runner holds on the GPU of the last stage from before the profile run on.

    For each of ``max_num_seqs`` requests: how often each token was put out (4 bytes) and which are in the prompt (1
    bit), for penalties; which tokens a grammar allows (1 bit), for each token that a step may choose; lists of tokens.
    A drafter has hidden states of a step's tokens, and tokens are looked up (ngram) in all that a request may have,
    which otherwise lie in pinned memory of the host. Logits of a drafter are kept with draft_sample_method
    probabilistic only, which is not the default. Block tables come after the budget.

    Sources (0.27.0 to 0.33.0): vllm/v1/worker/gpu/: sample/penalties.py, structured_outputs.py, states.py,
    buffer_utils.py, spec_decode/speculator.py and the speculators beside it.
    """
    total = sum(large_state_bytes(spec, settings)) + settings.max_num_seqs * 4 * _TOKEN_LISTS
    drafter = spec.drafter
    if drafter is not None and drafter.method == "ngram":
        total += settings.max_num_seqs * settings.max_model_len * 4
    if drafter is not None and drafter.model is not None and drafter.method in _READS_HIDDEN_STATES:
        width = drafter.model.hidden_size * drafter.model.residual_streams
        total += settings.max_num_batched_tokens * width * element_bytes(settings.dtype)
    return total


def large_state_bytes(spec: ModelSpec, settings: FilledSettings) -> tuple[int, int, int]:
    """Bytes of the tensors with a number for each token, in the order in which they are made."""
    mask = settings.max_num_seqs * 4 * -(-spec.vocab_size // 32)
    return mask, settings.max_num_seqs * 4 * spec.vocab_size, (1 + settings.num_speculative_tokens) * mask
