"""How an engine composes its steps, as far as queues depend on it, with the sources that say so.

mixed            prompts are read beside decoding sequences, in what these leave of the token budget: vLLM's V1 engine
                 (vllm/v1/core/sched/scheduler.py), kvplan's, and TensorRT-LLM's in-flight batching
prompts first    while a prompt can be admitted the step reads prompts only, and decoding waits: vLLM's first engine
                 without chunked prefill (vllm/core/scheduler.py), and SGLang without --enable-mixed-chunk
                 (sglang/srt/managers/scheduler.py, get_next_batch_to_run)
looks seldom     with --scheduler-recv-interval N, SGLang takes in what has come after N steps that only decode, and
                 after each step that reads prompts (SchedulerRecvSkipper, sglang/srt/managers/
                 scheduler_recv_skipper.py): a request that comes meanwhile waits
streams late     a step's tokens are looked at while the next one runs, and a sequence that has all of its own is in
                 one step more: vLLM's first engine from 0.6 on (asynchronous output processing, LLMEngine.step). A
                 server's engine, in a process of its own, sends them at once; callers who share the engine's
                 event loop see them when it wakes: for something of their own, or as that next step, which
                 runs in a thread, has ended (AsyncLLMEngine.step_async)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.releases.trtllm import trtllm_release
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.estimate.speed.queueing.front_end import NO_FRONT_END, SGLANG_FRONT_END, FrontEnd, vllm_front_end
from kvplan.settings import FilledSettings

SGLANG_MOST_RUNNING: Final = 2048
"""max_running_requests where nothing is said, of pools that are not huge (model_runner.py)."""
SGLANG_RESERVES: Final = 0.7
"""Share of an answer that SGLang keeps free at admission at first (SGLANG_INIT_NEW_TOKEN_RATIO, environ.py)."""
SGLANG_RESERVES_OF_GROUPS: Final = 0.3
"""The part of it where groups attend beside each other (schedule_conservativeness; handle_data_parallelism, 0.5.10 to
0.5.23)."""


@dataclass(frozen=True, slots=True)
class SchedulingRules:
    """What decides who is in a step of a group.

    chunks_prompts: a prompt may be read in several steps. reserves: share of an answer's tokens that must be free when
    its request is admitted; 0: none, and the newest sequence is preempted where the pool runs out. pool_tokens: those
    of all sequences together. schedules_ahead: a step is composed while the one before it runs. streams_late: clients
    see a step's tokens after so many seconds of the next one, at its end at the latest. num_stages: of a pipeline,
    which a step passes one after the other. num_groups: data-parallel ones, which have these seats, this budget and
    this pool each; in_step: they share their experts, and with them each step. hit_tokens: those of which what a prompt
    finds in the prefix cache is a multiple; 0: no prefixes are cached. dropped_tokens: of what is found, computed all
    the same, where a drafter needs the last block's hidden states (vllm/v1/core/single_type_kv_cache_manager.py).
    rows_per_sequence: tokens of one that decodes in a step, those that are drafted among them; tokens_per_step: those
    that it gets of them. recv_interval: steps that only decode between two looks at what has come.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    pool_tokens: float
    prompts_first: bool = False
    chunks_prompts: bool = True
    reserves: float = 0.0
    schedules_ahead: bool = False
    streams_late: float = 0.0
    front_end: FrontEnd = NO_FRONT_END
    num_stages: int = 1
    num_groups: int = 1
    in_step: bool = True
    hit_tokens: int = 1
    dropped_tokens: int = 0
    rows_per_sequence: int = 1
    tokens_per_step: float = 1
    recv_interval: int = 1

    def over_groups(self, count: int, stages: int = 1, *, in_step: bool = True) -> SchedulingRules:
        """Return the rules of ``count`` data-parallel groups with these seats and this budget each; ``pool_tokens`` is
        that of all.

        A pass through ``stages`` pipeline stages is one step here: each of its micro-batches has the budget. Groups of
        a model without experts are engines of their own, which do not wait for each other (vllm/v1/engine/core.py: the
        engine core with steps in common is that of mixtures).
        """
        return replace(
            self,
            max_num_batched_tokens=self.max_num_batched_tokens * stages,
            pool_tokens=self.pool_tokens / count,
            num_stages=stages,
            num_groups=count,
            in_step=in_step,
        )

    def alone(self, num_busy: int) -> SchedulingRules:
        """Rules of one group that waits for no other: with its own servers, or one as busy with ``num_busy``."""
        servers = self.front_end.servers // self.num_groups
        front_end = replace(self.front_end, servers=servers) if servers else self.front_end.shared_by(num_busy)
        return replace(self, num_groups=1, front_end=front_end)


def vllm_rules(
    settings: FilledSettings, release: VllmRelease, pool_tokens: float, *, chats: bool = True, model_type: str = ""
) -> SchedulingRules:
    """The first engine read whole prompts, unless they could be so long that it chunked by itself.

    ``chats``, ``model_type``: as for ``vllm_front_end``.
    """
    chunks = release.v1 or settings.max_num_batched_tokens < settings.max_model_len
    return SchedulingRules(
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
        pool_tokens,
        prompts_first=not chunks,
        chunks_prompts=chunks,
        schedules_ahead=release.schedules_ahead,
        front_end=vllm_front_end(release, chats=chats, groups=settings.data_parallel_size, model_type=model_type),
    )


def kvplan_rules(settings: FilledSettings, pool_tokens: float) -> SchedulingRules:
    """Rules of kvplan's own engine on a CPU, which mixes as vLLM's V1 engine does and composes no step ahead."""
    return SchedulingRules(settings.max_num_seqs, settings.max_num_batched_tokens, pool_tokens)


def sglang_rules(
    chunk_tokens: int, pool_tokens: float, max_num_seqs: int | None = None, *, has_groups: bool = False
) -> SchedulingRules:
    """A step of prompts takes at most a chunk; the scheduler's own work overlaps with the step before.

    ``chunk_tokens``: ``chunked_prefill_size``. ``has_groups``: several groups attend beside each other.
    """
    return SchedulingRules(
        max_num_seqs or SGLANG_MOST_RUNNING,
        chunk_tokens,
        pool_tokens,
        prompts_first=True,
        reserves=SGLANG_RESERVES * (SGLANG_RESERVES_OF_GROUPS if has_groups else 1),
        schedules_ahead=True,
        front_end=SGLANG_FRONT_END,
    )


def trtllm_rules(
    pool_tokens: float,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    *,
    chunks_prompts: bool = False,
) -> SchedulingRules:
    """GUARANTEED_NO_EVICT, the default: a request starts where all of it has room.

    ``chunks_prompts``: --enable_chunked_prefill; prompts are read whole otherwise.
    """
    release = trtllm_release()
    return SchedulingRules(
        max_num_seqs or release.max_batch_size,
        max_num_batched_tokens or release.max_num_tokens,
        pool_tokens,
        chunks_prompts=chunks_prompts,
        reserves=1.0,
        schedules_ahead=True,
    )
