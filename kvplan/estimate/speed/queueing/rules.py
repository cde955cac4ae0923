"""How an engine composes its steps, as far as queues depend on it, with the sources that say so.

mixed            prompts are read beside decoding sequences, in what these leave of the token budget: vLLM's V1 engine
                 (vllm/v1/core/sched/scheduler.py), kvplan's, and TensorRT-LLM's in-flight batching
prompts first    while a prompt can be admitted the step reads prompts only, and decoding waits: vLLM's first engine
                 without chunked prefill (vllm/core/scheduler.py), and SGLang without --enable-mixed-chunk
                 (sglang/srt/managers/scheduler.py, get_next_batch_to_run)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.engines import VllmRelease
from kvplan.settings import FilledSettings

SGLANG_MOST_RUNNING: Final = 2048
"""max_running_requests where nothing is said, of pools that are not huge (model_runner.py)."""
SGLANG_RESERVES: Final = 0.7
"""Share of an answer that SGLang keeps free at admission at first (SGLANG_INIT_NEW_TOKEN_RATIO, environ.py)."""
TRTLLM_MAX_BATCH_SIZE: Final = 2048
TRTLLM_MAX_NUM_TOKENS: Final = 8192
"""The defaults of trtllm-serve (tensorrt_llm/llmapi/llm_args.py: max_batch_size, max_num_tokens)."""


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """The server's own work on a request, in one event loop for all of them. Seconds.

    parsing_seconds: before a request waits for anything, so that requests which were sent at one moment are all parsed
    before one goes on. request_seconds: the rest until the engine is handed it, one request after another.
    token_seconds: of each token that is streamed, between the requests.
    """

    parsing_seconds: float = 0.0
    request_seconds: float = 0.0
    token_seconds: float = 0.0

    def seconds(self, num_output_tokens: float) -> float:
        """Of a request with all tokens of its answer."""
        return self.parsing_seconds + self.request_seconds + self.token_seconds * num_output_tokens

    def shared_by(self, count: int) -> FrontEnd:
        """As one of ``count`` instances sees it that share one server: for each request of its own ``count`` come."""
        return FrontEnd(count * self.parsing_seconds, count * self.request_seconds, count * self.token_seconds)


NO_FRONT_END: Final = FrontEnd()
VLLM_FRONT_END: Final = FrontEnd(request_seconds=0.0035, token_seconds=47.5e-6)
"""From pull requests of vllm-project/vllm, none of which ``tools/score_published_speeds.py`` scores. A request with all
200 tokens of its answer costs one API server 13 ms (17546: 10,000 of ShareGPT in 131 s where 120 a second are sent, the
reason for several servers). Parsing the chat template takes 6 to 8 ms (20065) and is two thirds of what a request of
one token costs (19735: three times as many of them without), so 3.5 ms are not parsing; the rest is the tokens'.

Played with these, a burst of 8,192 chats to four servers gets 780 requests/s where 740 were measured (41181), and 1,000
at once to vLLM's first engine, which parsed no templates then, 55 where 53 were measured (10635)."""
VLLM_TEMPLATE_SECONDS: Final = 0.007
"""Of a release that parses the template of each chat (``VllmRelease.parses_templates``): 6 to 8 s for 1,000 chats
"before prompts actually are started to process" (pull request 20065). 1,000 chats at once to Llama-3.1-8B (18566, May
2025) have a TTFT of 9.6 s in the mean, 9.5 s in the median and 12.7 s at p99; played on H100 SXM, 9.5, 9.5 and 12.1 s
(the request does not name the GPU, but its 30.9 s in all are those of no slower one)."""
SGLANG_FRONT_END: Final = FrontEnd(parsing_seconds=0.001)
"""A rough choice on 12 of gpustack's bursts of ShareGPT to SGLang 0.5, among the rows that
``tools/score_published_speeds.py`` scores: these are not held out for it. TensorRT-LLM has none."""


def vllm_front_end(release: VllmRelease, *, chats: bool) -> FrontEnd:
    """Of one API server, the default. ``chats``: requests are messages (/v1/chat/completions), not prompts."""
    is_parsed = chats and release.parses_templates
    return replace(VLLM_FRONT_END, parsing_seconds=VLLM_TEMPLATE_SECONDS if is_parsed else 0.0)


@dataclass(frozen=True, slots=True)
class SchedulingRules:
    """What decides who is in a step.

    chunks_prompts: a prompt may be read in several steps. reserves: share of an answer's tokens that must be free when
    its request is admitted; 0: none, and the newest sequence is preempted where the pool runs out. pool_tokens: those
    of all sequences together. schedules_ahead: a step is composed while the one before it runs. max_chunk_tokens: of
    one prompt in a step, where groups have a budget each.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    pool_tokens: float
    prompts_first: bool = False
    chunks_prompts: bool = True
    reserves: float = 0.0
    schedules_ahead: bool = False
    front_end: FrontEnd = NO_FRONT_END
    max_chunk_tokens: float = math.inf

    def over_groups(self, count: int, stages: int = 1) -> SchedulingRules:
        """Of ``count`` data-parallel groups with these seats and this budget each; ``pool_tokens`` is that of all.

        A pass through ``stages`` pipeline stages is one step here: each of its micro-batches has the budget.
        """
        return replace(
            self,
            max_num_seqs=self.max_num_seqs * count,
            max_num_batched_tokens=self.max_num_batched_tokens * count * stages,
            max_chunk_tokens=math.inf if count == 1 else self.max_num_batched_tokens,
        )


def vllm_rules(
    settings: FilledSettings, release: VllmRelease, pool_tokens: float, *, chats: bool = True
) -> SchedulingRules:
    """The first engine read whole prompts, unless they could be so long that it chunked by itself.

    ``chats``: as for ``vllm_front_end``.
    """
    chunks = release.v1 or settings.max_num_batched_tokens < settings.max_model_len
    return SchedulingRules(
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
        pool_tokens,
        prompts_first=not chunks,
        chunks_prompts=chunks,
        schedules_ahead=release.schedules_ahead,
        front_end=vllm_front_end(release, chats=chats),
    )


def kvplan_rules(settings: FilledSettings, pool_tokens: float) -> SchedulingRules:
    """Of kvplan's own engine on a CPU, which mixes as vLLM's V1 engine does and composes no step ahead."""
    return SchedulingRules(settings.max_num_seqs, settings.max_num_batched_tokens, pool_tokens)


def sglang_rules(chunk_tokens: int, pool_tokens: float, max_num_seqs: int | None = None) -> SchedulingRules:
    """A step of prompts takes at most a chunk; the scheduler's own work overlaps with the step before.

    ``chunk_tokens``: ``chunked_prefill_size``.
    """
    return SchedulingRules(
        max_num_seqs or SGLANG_MOST_RUNNING,
        chunk_tokens,
        pool_tokens,
        prompts_first=True,
        reserves=SGLANG_RESERVES,
        schedules_ahead=True,
        front_end=SGLANG_FRONT_END,
    )


def trtllm_rules(
    pool_tokens: float, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None
) -> SchedulingRules:
    """GUARANTEED_NO_EVICT, the default: a request starts where all of it has room. Prompts are read whole."""
    return SchedulingRules(
        max_num_seqs or TRTLLM_MAX_BATCH_SIZE,
        max_num_batched_tokens or TRTLLM_MAX_NUM_TOKENS,
        pool_tokens,
        chunks_prompts=False,
        reserves=1.0,
        schedules_ahead=True,
    )
