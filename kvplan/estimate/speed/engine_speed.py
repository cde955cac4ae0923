"""One instance under an engine and its release: how fast its steps are, and how it composes them."""

from __future__ import annotations

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.speed.queueing.front_end import NO_FRONT_END, vllm_front_end
from kvplan.estimate.speed.queueing.rules import SchedulingRules, kvplan_rules, vllm_rules
from kvplan.estimate.speed.queueing.steps import mixed_tile_rows
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.host import NO_HOST, host_work
from kvplan.estimate.speed.steps.kernels.block_kernels import older_blocks
from kvplan.estimate.speed.steps.kernels.expert_backends import by_backend, with_backend
from kvplan.estimate.speed.steps.kernels.few_bits import with_few_bits
from kvplan.estimate.speed.steps.kernels.release_kernels import of_release
from kvplan.estimate.speed.steps.kernels.routing_kernels import with_routing
from kvplan.estimate.speed.steps.kernels.sparse_latents import with_choice
from kvplan.estimate.speed.steps.kernels.state_scans import GATED_DELTA, with_state_scans
from kvplan.estimate.speed.steps.kernels.static_scales import with_static_scales
from kvplan.estimate.speed.steps.kernels.tile_rows import with_tiles
from kvplan.estimate.speed.steps.kernels.widened_weights import with_widened_weights
from kvplan.estimate.speed.steps.work import ModelWork
from kvplan.settings import FilledSettings


def engine_speed_model(
    engine: EngineChoice,
    work: ModelWork,
    gpu: GpuProfile,
    input_tokens: int,
    output_tokens: int,
    kv_bytes: float,
    device_speed: DeviceSpeed | None,
    moe_backend: str = "auto",
    step_tokens: int | None = None,
    *,
    is_eager: bool = False,
    captures_prompts: bool = False,
) -> SpeedModel:
    """Prompts of ``input_tokens``, answers of ``output_tokens``; ``kv_bytes`` as for ``SpeedModel``.

    ``moe_backend``: the experts' kernels, of MOE_BACKENDS. ``step_tokens``: as for ``SpeedModel``. ``is_eager``,
    ``captures_prompts``: as for ``host_work``.
    """
    host, tile_rows = NO_HOST, 1
    release = vllm_release(engine.version if engine.name == "vllm" else "latest")
    if not gpu.is_cpu:
        ranks = work.layout.expert_ranks
        host = host_work(engine, release, gpu, ranks, is_eager=is_eager, captures_prompts=captures_prompts)
        if engine.name == "vllm":
            tile_rows = mixed_tile_rows(release, gpu.compute_capability)
        if device_speed is None:
            work = by_backend(work, moe_backend)
        else:
            device_speed = with_backend(device_speed, work, gpu, engine, moe_backend)
            if engine.name == "vllm":
                device_speed = of_release(device_speed, work, release)
            device_speed = with_few_bits(device_speed, work, gpu, engine)
            device_speed = with_choice(older_blocks(device_speed, work, engine), work, gpu)
            device_speed = with_widened_weights(device_speed, work, gpu, engine.name)
            device_speed = with_static_scales(device_speed, work, gpu, engine)
            device_speed = with_tiles(device_speed, work, gpu, engine)
            device_speed = with_routing(device_speed, work, engine)
            device_speed = with_state_scans(device_speed, work, gpu, engine.name)
    delta_share = work.num_recurrent_layers / work.num_layers if work.recurrent == GATED_DELTA else 0.0
    host = host.with_mixers(work.num_latent_layers / work.num_layers, delta_share)
    front_end = NO_FRONT_END
    if engine.name == "vllm":
        groups = work.layout.data_parallel_size
        front_end = vllm_front_end(release, chats=True, groups=groups, model_type=work.model_type)
    return SpeedModel(
        work,
        gpu,
        input_tokens,
        output_tokens,
        kv_bytes,
        device_speed,
        engine.name,
        host,
        mixed_tile_rows=tile_rows,
        engine_front_end=front_end,
        is_first_engine=engine.name == "vllm" and not release.v1,
        step_tokens=step_tokens,
        steps_before=1.5 if engine.name == "vllm" and release.schedules_ahead else 0.5,
    )


def engine_rules(
    engine: EngineChoice, settings: FilledSettings, work: ModelWork, pool_tokens: float
) -> SchedulingRules:
    """Return the rules of an instance of ``work``'s layout. ``pool_tokens``: those of all its data-parallel groups."""
    if engine.name == "vllm":
        rules = vllm_rules(settings, vllm_release(engine.version), pool_tokens, model_type=work.model_type)
    else:
        rules = kvplan_rules(settings, pool_tokens)
    layout = work.layout
    return rules.over_groups(layout.data_parallel_size, layout.pipeline_parallel_size, in_step=work.steps_together)
