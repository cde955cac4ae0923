"""What one sequence takes of an engine's pool: whole blocks while it runs, and what is reserved before it may start.

Three figures are all legitimate, and most disputes come from mixing them. *Logical*: the bytes of the architecture.
*Paged*: whole blocks, padded where layers of several kinds share one pool. *Admission*: what must be free for the
sequence to be let in; every sliding window then also holds the tokens of the prefill that is in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.kvplan.layout import KvLayout, plan_layout
from kvplan.estimate.vllm.groups import RequestShape, blocks_per_request, plan_blocks


@dataclass(frozen=True, slots=True)
class SequencePages:
    """One sequence in blocks: how many while it decodes and how many at admission, and what a block costs.

    ``layout``: what the blocks hold, of kvplan's own engine.
    """

    block_size: int
    bytes_per_block: int
    num_groups: int
    paged_blocks: int
    admission_blocks: int
    layout: KvLayout | None = None

    @property
    def paged_bytes(self) -> int:
        return self.paged_blocks * self.bytes_per_block

    @property
    def admission_bytes(self) -> int:
        return self.admission_blocks * self.bytes_per_block

    @property
    def paged_formula(self) -> str:
        return self._formula(self.paged_blocks)

    @property
    def admission_formula(self) -> str:
        return self._formula(self.admission_blocks)

    def _formula(self, blocks: int) -> str:
        groups = f" in {self.num_groups} groups" if self.num_groups > 1 else ""
        return f"{blocks:,} blocks{groups} x {self.bytes_per_block:,} B"


def vllm_pages(
    spec: ModelSpec,
    cache: CacheSettings,
    *,
    context_tokens: int,
    block_size: int,
    in_flight_tokens: int,
    version: str = "latest",
) -> SequencePages:
    """The blocks of one sequence under vLLM's grouping, on one rank. KvplanError where vLLM refuses the mixture."""
    plan = plan_blocks(spec.layers, cache, block_size, vllm_release(version))
    tokens = cache.encoder_tokens or 0
    steady = RequestShape(context_tokens, 1, encoder_tokens=tokens)
    admitted = RequestShape(context_tokens, in_flight_tokens, encoder_tokens=tokens)
    return SequencePages(
        block_size=plan.block_size,
        bytes_per_block=plan.bytes_per_block,
        num_groups=len(plan.groups),
        paged_blocks=blocks_per_request(plan, steady),
        admission_blocks=blocks_per_request(plan, admitted),
    )


def kvplan_pages(
    spec: ModelSpec, cache: CacheSettings, *, context_tokens: int, block_size: int, in_flight_tokens: int
) -> SequencePages:
    """The blocks of one sequence in kvplan's own engine; of a prompt ``in_flight_tokens`` are computed in a step."""
    layout = plan_layout(spec, cache, block_size, encoder_tokens=context_tokens)
    return SequencePages(
        block_size=block_size,
        bytes_per_block=layout.block_bytes,
        num_groups=len(layout.groups),
        paged_blocks=layout.blocks_for(context_tokens),
        admission_blocks=layout.blocks_for(context_tokens, min(in_flight_tokens, context_tokens)),
        layout=layout,
    )
