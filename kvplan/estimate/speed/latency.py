"""Time to first token, time per output token and throughput: from a measured profile of the device, else a roofline.

Every figure is a range, and says where it comes from (``ServingSpeed.origin``). From a roofline (bytes moved and
operations done, by the data sheet) the low end assumes that kernels reach what well-tuned ones reach, the high end what
ordinary deployments show. From a measured profile the range is as wide as the profile's held-out error.

A step of decoding reads the weights once for the whole batch and the KV cache of every sequence; prefilling is bound by
matrix multiplications. While users' requests follow one another, each request's prefill also delays everybody else's
tokens (chunked prefill shares the steps).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvplan.catalog.gpus import GpuProfile
from kvplan.catalog.measured import MeasuredProfile, Origin
from kvplan.catalog.spec import ModelSpec, MoeFeedForward, QuantizationSpec
from kvplan.catalog.tensors import count_elements
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.kv_cache import CacheSettings, size_sequence
from kvplan.estimate.mixers import AttentionSpan, merged_spans
from kvplan.estimate.speed.step_time import Speed, StepShape, StepTimes, step_shape

# The 90th percentile of the held-out error, where a profile has none; and how much wider the range gets for a model
# that the profile was not fitted to (gpt2's coefficients on SmolLM2: 1.0 to 1.5 times the error on gpt2 itself).
_UNKNOWN_ERROR = 0.3
_OTHER_MODEL = 1.5


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the data sheet that kernels reach, and what each step and each all-reduce costs on top."""

    bandwidth: float
    flops: float
    link: float
    step_seconds: float
    all_reduce_seconds: float


BEST = Efficiency(bandwidth=0.85, flops=0.65, link=0.8, step_seconds=0.0005, all_reduce_seconds=8e-6)
USUAL = Efficiency(bandwidth=0.60, flops=0.35, link=0.5, step_seconds=0.003, all_reduce_seconds=25e-6)


@dataclass(frozen=True, slots=True)
class Range:
    """Low and high end of a figure."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric mean: as many times more than the low end as less than the high one."""
        return float((self.low * self.high) ** 0.5)


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What one rank does. ``dense_bytes`` are read in every step, ``expert_bytes`` as far as tokens are routed to them.

    ``active_parameters`` are multiplied with each token, and ``attention`` is what it attends to (both over all ranks).
    """

    tensor_parallel_size: int
    num_layers: int
    hidden_size: int
    activation_bytes: int
    dense_bytes: float
    expert_bytes: float
    num_experts: int
    experts_per_token: int
    active_parameters: int
    attention: tuple[AttentionSpan, ...]
    compute_dtype: str
    head_parameters: int
    step_activation_bytes: float

    def touched_experts(self, tokens: float) -> float:
        """Share of the experts that at least one of ``tokens`` tokens is routed to, when they choose at random."""
        if not self.num_experts:
            return 0.0
        return 1.0 - (1.0 - self.experts_per_token / self.num_experts) ** tokens


def model_work(spec: ModelSpec, weight_bytes: int, dtype: str, tensor_parallel_size: int) -> ModelWork:
    """The work of a rank that holds ``weight_bytes``; embeddings are looked up, not read whole."""
    expert_share, experts, per_token = _expert_share(spec)
    looked_up = count_elements(tuple(tensor for tensor in spec.tensors if tensor.role in ("embedding", "position")))
    if spec.tie_word_embeddings:
        looked_up = 0
    read_bytes = weight_bytes * (1 - looked_up / max(spec.num_parameters, 1))
    return ModelWork(
        tensor_parallel_size=tensor_parallel_size,
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        activation_bytes=2,
        dense_bytes=read_bytes * (1 - expert_share),
        expert_bytes=read_bytes * expert_share,
        num_experts=experts,
        experts_per_token=per_token,
        active_parameters=max(spec.num_active_parameters - looked_up, 1),
        attention=merged_spans(spec.layers),
        compute_dtype=compute_dtype(spec.quantization, dtype),
        head_parameters=spec.vocab_size * spec.hidden_size,
        step_activation_bytes=step_shape(
            spec, element_bytes=element_bytes(dtype), kv_bytes_per_token=0.0
        ).activation_bytes_per_token,
    )


def compute_dtype(quantization: QuantizationSpec | None, dtype: str) -> str:
    """The format the matrices are multiplied in: 8-bit where weights and activations are, else the activations'."""
    if quantization is None:
        return dtype
    if quantization.method in ("nvfp4",):
        return "fp4"
    eight_bit_floats = ("fp8", "fbgemm_fp8", "modelopt")
    return "fp8" if quantization.method in eight_bit_floats and quantization.bits == 8 else dtype


def _expert_share(spec: ModelSpec) -> tuple[float, int, int]:
    elements, experts, per_token = 0, 0, 0
    for layer in spec.layers:
        part = layer.feed_forward
        if isinstance(part, MoeFeedForward):
            elements += sum(tensor.num_elements for tensor in part.tensors if tensor.role == "expert")
            experts, per_token = part.num_experts, part.experts_per_token
    return elements / max(spec.num_parameters, 1), experts, per_token


def kv_read_bytes(spec: ModelSpec, context_tokens: int, cache: CacheSettings) -> int:
    """Bytes of one sequence's cache that a decode step reads on one rank."""
    return size_sequence(spec, max(context_tokens, 1), cache).logical_bytes


def decode_step_seconds(work: ModelWork, gpu: GpuProfile, batch: float, kv_bytes: float) -> Range:
    """One token for each of ``batch`` sequences whose caches hold ``kv_bytes`` on average on each rank."""
    return _both(lambda efficiency: _step(work, gpu, batch, kv_bytes, efficiency))


def _step(work: ModelWork, gpu: GpuProfile, batch: float, kv_bytes: float, efficiency: Efficiency) -> float:
    read = work.dense_bytes + work.expert_bytes * work.touched_experts(batch) + batch * kv_bytes
    memory_seconds = read / (gpu.memory_bandwidth_bytes_per_second * efficiency.bandwidth)
    operations = 2 * batch * work.active_parameters / work.tensor_parallel_size
    compute_seconds = operations / (gpu.flops(work.compute_dtype) * efficiency.flops)
    return max(memory_seconds, compute_seconds) + _reduce(work, gpu, batch, efficiency) + efficiency.step_seconds


def is_bandwidth_bound(work: ModelWork, gpu: GpuProfile, batch: float, kv_bytes: float) -> bool:
    """Whether a decode step waits for memory rather than for arithmetic."""
    read = work.dense_bytes + work.expert_bytes * work.touched_experts(batch) + batch * kv_bytes
    operations = 2 * batch * work.active_parameters / work.tensor_parallel_size
    return read / gpu.memory_bandwidth_bytes_per_second > operations / gpu.flops(work.compute_dtype)


def prefill_seconds(work: ModelWork, gpu: GpuProfile, tokens: int) -> Range:
    """Reading a prompt of ``tokens`` tokens, alone on the GPUs."""
    return _both(lambda efficiency: _prefill(work, gpu, tokens, efficiency))


def _prefill(work: ModelWork, gpu: GpuProfile, tokens: int, efficiency: Efficiency) -> float:
    # Causal: a token attends to half of the prompt on average; 2 operations per multiply-add.
    attention = tokens * sum(span.multiply_adds(tokens / 2) for span in work.attention)
    operations = 2 * (tokens * work.active_parameters + attention) / work.tensor_parallel_size
    compute_seconds = operations / (gpu.flops(work.compute_dtype) * efficiency.flops)
    read = work.dense_bytes + work.expert_bytes * work.touched_experts(tokens)
    memory_seconds = read / (gpu.memory_bandwidth_bytes_per_second * efficiency.bandwidth)
    return max(compute_seconds, memory_seconds) + _reduce(work, gpu, tokens, efficiency) + efficiency.step_seconds


def _reduce(work: ModelWork, gpu: GpuProfile, tokens: float, efficiency: Efficiency) -> float:
    """Two all-reduces per layer of the hidden states of ``tokens`` tokens."""
    tp = work.tensor_parallel_size
    if tp == 1:
        return 0.0
    link = (gpu.link_bytes_per_second or gpu.memory_bandwidth_bytes_per_second / 20) * efficiency.link
    moved = 2 * (tp - 1) / tp * tokens * work.hidden_size * work.activation_bytes
    return 2 * work.num_layers * (efficiency.all_reduce_seconds + moved / link)


def _both(time: Callable[[Efficiency], float]) -> Range:
    return Range(time(BEST), time(USUAL))


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """What a device reached in a sweep, for one model. ``errors``: the share of a figure that its range spans."""

    speed: Speed
    origin: Origin
    dtype: str
    note: str
    errors: dict[str, float]

    @staticmethod
    def of(profile: MeasuredProfile, model_id: str, dtype: str) -> DeviceSpeed:
        """The profile's coefficients with its 90th percentiles, widened for a model or dtype it was not fitted to."""
        origin = profile.origin_for(model_id, dtype)
        wider = 1.0 if origin == "measured" else _OTHER_MODEL
        found = {name: min(wider * error.p90_pct / 100, 0.9) for name, error in profile.errors.items()}
        errors = {name: found.get(name, _UNKNOWN_ERROR) for name in ("output_throughput", "tpot", "ttft")}
        return DeviceSpeed(Speed.from_json(profile.coefficients), origin, profile.dtype, profile.as_text(), errors)

    def around(self, value: float, figure: str) -> Range:
        error = self.errors[figure]
        return Range(value * (1 - error), value * (1 + error))


@dataclass(frozen=True, slots=True)
class ServingSpeed:
    """One replica with ``num_users`` requests always in progress. Throughputs are per second and replica."""

    num_users: float
    ttft_seconds: Range
    tpot_seconds: Range
    e2el_seconds: Range
    output_tokens_per_second: Range
    requests_per_second: Range
    bandwidth_bound: bool
    origin: Origin = "roofline"
    note: str | None = None
    """What a measured profile says of itself; None for a roofline."""


def serving_speed(
    work: ModelWork,
    gpu: GpuProfile,
    num_users: float,
    input_tokens: int,
    output_tokens: int,
    kv_bytes: float,
    device_speed: DeviceSpeed | None = None,
) -> ServingSpeed:
    """Steady state of ``num_users`` users who each send the next request when the last one has been answered."""
    if device_speed is not None:
        return _calibrated_speed(work, gpu, num_users, input_tokens, output_tokens, kv_bytes, device_speed)
    ends = [
        _steady_state(
            _step(work, gpu, num_users, kv_bytes, efficiency),
            _prefill(work, gpu, input_tokens, efficiency),
            num_users,
            output_tokens,
        )
        for efficiency in (BEST, USUAL)
    ]
    best, usual = ends
    return ServingSpeed(
        num_users=num_users,
        ttft_seconds=Range(best[0], usual[0]),
        tpot_seconds=Range(best[1], usual[1]),
        e2el_seconds=Range(best[2], usual[2]),
        output_tokens_per_second=Range(num_users * output_tokens / usual[2], num_users * output_tokens / best[2]),
        requests_per_second=Range(num_users / usual[2], num_users / best[2]),
        bandwidth_bound=is_bandwidth_bound(work, gpu, num_users, kv_bytes),
    )


def _steady_state(step: float, prefill: float, users: float, output_tokens: int) -> tuple[float, float, float]:
    """(time to first token, time per output token, whole request) in seconds.

    While one request makes its tokens, every other user's next prompt is read once in between.
    """
    cycle = output_tokens * step + users * prefill
    busy = min(users * prefill / cycle, 0.95)
    # Prompts arrive independently: one waits for those before it, as in an M/D/1 queue.
    waiting = prefill * busy / (2 * (1 - busy)) if users > 1 else 0.0
    first = prefill + waiting + step
    each = step + max(users - 1, 0) * prefill / output_tokens
    return first, each, first + max(output_tokens - 1, 0) * each


def _calibrated_speed(
    work: ModelWork,
    gpu: GpuProfile,
    num_users: float,
    input_tokens: int,
    output_tokens: int,
    kv_bytes: float,
    device: DeviceSpeed,
) -> ServingSpeed:
    context = input_tokens + output_tokens / 2
    others = max(num_users - 1, 0)

    def step(users: float, new_tokens: float) -> float:
        """``users`` decode while ``new_tokens`` of one more prompt are read in the same step."""
        times = _step_times(work, gpu, users + new_tokens, device)
        sequences = round(users + (new_tokens > 0))
        read = users * kv_bytes + new_tokens / context * kv_bytes
        pairs = users * context + new_tokens**2 / 2
        seconds = times.seconds(round(users + new_tokens), sequences, sequences, round(read), pairs)
        return seconds + _reduce(work, gpu, users + new_tokens, USUAL)

    alone = step(0, input_tokens)
    # A prompt shares its steps with decoding sequences: what it adds is less than what it costs alone.
    prefill = step(others, input_tokens) - step(others, 0) if others else alone
    first, each, whole = _steady_state(step(num_users, 0), prefill, num_users, output_tokens)
    throughput = device.around(num_users * output_tokens / whole, "output_throughput")
    return ServingSpeed(
        num_users=num_users,
        ttft_seconds=device.around(first, "ttft"),
        tpot_seconds=device.around(each, "tpot"),
        e2el_seconds=device.around(whole, "output_throughput"),
        output_tokens_per_second=throughput,
        requests_per_second=Range(throughput.low / output_tokens, throughput.high / output_tokens),
        bandwidth_bound=is_bandwidth_bound(work, gpu, num_users, kv_bytes),
        origin=device.origin,
        note=device.note,
    )


def _step_times(work: ModelWork, gpu: GpuProfile, num_tokens: float, device: DeviceSpeed) -> StepTimes:
    """The profile's coefficients on this rank's work; K and V are counted in bytes, not in tokens."""
    tp = work.tensor_parallel_size
    head_share = min(work.head_parameters / max(work.active_parameters, 1), 1.0)
    weights = work.dense_bytes + work.expert_bytes * work.touched_experts(num_tokens)
    head_bytes = work.dense_bytes * head_share
    shape = StepShape(
        num_layers=work.num_layers,
        body_parameters=work.active_parameters * (1 - head_share) / tp,
        head_parameters=work.active_parameters * head_share / tp,
        body_bytes=weights - head_bytes,
        head_bytes=head_bytes,
        kv_bytes_per_token=1.0,
        attention_width=sum(span.width_per_token for span in work.attention) / tp,
        activation_bytes_per_token=work.step_activation_bytes / tp,
    )
    # Another format than the profile's multiplies as much faster or slower as the data sheet says.
    factor = 1.0 if gpu.is_cpu else gpu.flops(work.compute_dtype) / gpu.flops(device.dtype)
    return StepTimes(shape, replace(device.speed, flops=device.speed.flops * factor))
