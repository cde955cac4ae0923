"""Decode context parallelism: the ranks of a tensor-parallel group share the KV cache of each sequence.

Rank i of N caches the tokens whose position leaves i (pull request 23734 of vllm-project/vllm), so that a pool holds N
times as many. Latent attention is cached whole on every rank, and its tokens can be divided over all of them. Heads of
other attention are divided first: only their copies, on more ranks than there are heads, can hold different tokens
(vllm/config/model.py, verify_with_parallel_config).
"""

from __future__ import annotations

from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import LatentAttention, ModelSpec, SoftmaxAttention
from kvplan.errors import UsageError
from kvplan.settings import ServingSettings


def check_contexts(spec: ModelSpec, settings: ServingSettings, version: str) -> None:
    """UsageError where vLLM ``version`` refuses so many ranks for a context, or where kvplan does not size them.

    Only caches of every token are sized: windows, states and index keys may be whole on each rank.
    """
    count, ranks = settings.decode_context_parallel_size, settings.tensor_parallel_size
    if count == 1:
        return
    option = f"--decode-context-parallel-size {count}"
    release = vllm_release(version)
    heads = _kv_heads(spec)
    if not (release.divides_latent_contexts if heads is None else release.divides_contexts):
        raise UsageError(
            f"vLLM {release.text} does not divide contexts of {spec.served_id}.", hint=f"leave {option} out"
        )
    if ranks % count:
        raise UsageError(
            f"{option} does not divide the {ranks} tensor-parallel ranks.",
            hint="use a divisor of --tensor-parallel-size",
        )
    if heads is None:
        return
    copies = ranks // heads
    if copies < 2 or count > copies:
        what = f"vLLM refuses {option} for {spec.served_id}: on {ranks} ranks its {heads} KV heads have "
        hint = f"use at most {copies}" if copies > 1 else f"use more than {heads} ranks, or leave it out"
        raise UsageError(f"{what}{max(copies, 1)} {'copies' if copies > 1 else 'copy'} each.", hint=hint)
    queries = _query_heads(spec) // heads
    if queries % count:
        raise UsageError(
            f"vLLM refuses {option} for {spec.served_id}: its {queries} query heads per KV head are no multiple of it.",
            hint=f"use a divisor of {queries}",
        )


def _kv_heads(spec: ModelSpec) -> int | None:
    """Return the KV heads of every layer; None for latent attention. UsageError for layers that keep anything else."""
    mixers = [layer.mixer for layer in spec.layers]
    plain = [each for each in mixers if isinstance(each, SoftmaxAttention) and each.window_tokens is None]
    if len(plain) == len(mixers):
        return max(each.num_kv_heads for each in plain)
    if all(isinstance(each, LatentAttention) for each in mixers) and not spec.has_indexer:
        return None
    raise UsageError(
        f"kvplan does not size {spec.served_id} with --decode-context-parallel-size: not all layers cache every token.",
        hint="leave it out",
    )


def _query_heads(spec: ModelSpec) -> int:
    return max(each.num_heads for layer in spec.layers if isinstance(each := layer.mixer, SoftmaxAttention))
