"""Small kernels of a mixture's layer that some models have and no table: routing, its product, and norms over ranks.

Tables of experts route by one kernel for the softmax of an unquantized product. By model and release there are more:

**Choosing experts.** GLM-4's and, before 0.5.7, MiniMax-M2's experts are one group and have a bias, which SGLang's
``biased_grouped_topk`` leaves to PyTorch: its fused gate wants at most 32 experts in a group and a power of two of them
(python/sglang/srt/layers/moe/topk.py). That is 8 kernels (pull request 13049 of sgl-project/sglang, which gave
MiniMax-M2 one, used from 14047 on). For one token of 128 to 256 experts PyTorch takes 11.9 to 12.3 us on a B200 in a
graph and the kernel of the tables 6.7 to 6.9 (25835): 5.3 us more. On Hopper 384 experts took 10.7 to 14.7 us (13374).

**Their product.** GLM-4's and MiniMax-M2's routers are in 32 bits: the hidden state is widened, and the product, which
no tensor core does, is split in two kernels (pull request 38445 of vllm-project/vllm, which gave MiniMax-M2 one kernel
in 0.19). On a GB300 those three take 16.7 us a layer where one in 16 bits takes 8.7 (issue 38695 of
sgl-project/sglang, of another model's): 8.0 us more. vLLM's compiler joins the widening with the norm before it, which
leaves 5.8 (2.2 us for a small kernel, see ``sglang_experts``). SGLang 0.5.14 has TF32 in GLM-4's
(arg_groups/overrides.py), which is as fast as 16 bits: of the time of MiniMax-M2.5's decode steps with 64 sequences 9.1
% went to that product before and 3.3 % after (22744).

**Norms over ranks.** MiniMax-M2 normalizes queries and keys over the heads of all ranks. Each of the two norms was a
sum, an all-reduce and a product; then both are done together by as many kernels as one (pull requests 14416 of
sgl-project/sglang and 31493 of vllm-project/vllm), and in SGLang from 0.5.10 on by one kernel, which brings 157 tokens
a second where 150 were with four ranks (20673): 4.8 us of each of 62 layers. The tables have norms without ranks, so
that an all-reduce for each and these kernels are added: 4.8 us for three kernels, and 2.2 for each further one.

Releases: what was merged before a release's day.
"""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.sglang import SglangRelease, sglang_release
from kvplan.catalog.releases.vllm import VllmRelease, vllm_release
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import ModelWork


def with_routing(speed: DeviceSpeed, work: ModelWork, engine: EngineChoice) -> DeviceSpeed:
    """Return ``speed``, of a fit to tables, with the small kernels that the model's layers have beside."""
    experts, links = speed.speed.experts, speed.speed.links
    if experts is None or speed.engine_version is None or not work.num_experts:
        return speed
    facts = _facts(engine)
    if facts is None:
        return speed
    kind, ranks = work.model_type, work.layout.tensor_parallel_size
    more = facts.routing_seconds.get(kind, 0.0)
    if ranks > 1 and links is not None:
        more += facts.norm_seconds.get(kind, 0.0) + facts.norm_all_reduces.get(kind, 0) * links.seconds(ranks)
    experts = replace(experts, layer_seconds=experts.layer_seconds + more)
    return replace(speed, speed=replace(speed.speed, experts=experts)) if more else speed


def _facts(engine: EngineChoice) -> SglangRelease | VllmRelease | None:
    if engine.name == "sglang":
        return sglang_release(engine.version)
    return vllm_release(engine.version) if engine.name == "vllm" else None
