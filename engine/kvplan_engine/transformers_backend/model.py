"""A model that runs in its class of transformers, as the engine sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kvplan_engine.attention.backend import AttentionBackend
from kvplan_engine.checkpoints.loaders import LOADERS, read_config
from kvplan_engine.checkpoints.weights import weight_fingerprint
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import num_parameters
from kvplan_engine.device.device import Device
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.cuda.sampling import CudaDraws
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.memory.breakdown import BufferSpec
from kvplan_engine.memory.step_buffers import draw_buffers
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.device_kernels import select_kernels
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.loaded_model import LoadedModel
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.transformers_backend.ways import (
    OneByOne,
    SplitModel,
    Together,
    Way,
    find_class,
    raw_config,
    treats_rows_alike,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

logger = logging.getLogger("kvplan_engine")

# A class of transformers with its weights, checked against the engine's description of the model.


def load_class(
    config: EngineConfig, source: Any, description: ModelDescription, dtype: torch.dtype, device: torch.device
) -> tuple[PreTrainedModel, bool]:
    """The model of ``source`` on ``device``, and whether its weights are dummies.

    EngineError where weights are quantised or missing, or where it has other parameters than ``description``.
    """
    made = find_class(source)
    settings = _config_of(made, source)
    folder = _folder_of(source, config.load_format)
    if folder is None and getattr(settings, "quantization_config", None) is not None:
        del settings.quantization_config  # dummies are in the dtype that is computed in
    with _quiet():
        if folder is None:
            with torch.random.fork_rng(devices=[]), torch.device(device):
                torch.manual_seed(config.seed)
                model = made._from_config(settings, dtype=dtype)
        else:
            model = _read(made, folder, settings, dtype).to(device)  # type: ignore[arg-type]
    _check_parameters(model, description)
    return model.eval().requires_grad_(False), folder is None


def _config_of(made: type[PreTrainedModel], source: Any) -> PretrainedConfig:
    raw = {key: _with_infinity(value) for key, value in raw_config(source).items() if key != "auto_map"}
    assert made.config_class is not None, "every class of a published architecture has one"
    settings: PretrainedConfig = made.config_class.from_dict(raw)
    settings.use_cache = True
    if getattr(settings, "output_router_logits", False):
        settings.output_router_logits = False
    return settings


def _with_infinity(value: Any) -> Any:
    """``value`` of a config.json, in which transformers writes {"__float__": "Infinity"}: JSON has no infinity."""
    if isinstance(value, dict):
        return float(value["__float__"]) if "__float__" in value else {k: _with_infinity(v) for k, v in value.items()}
    return [_with_infinity(each) for each in value] if isinstance(value, list) else value


def _folder_of(source: Any, load_format: str) -> Path | None:
    """Where the weights are; None for dummies."""
    loader = LOADERS["safetensors"]
    path = Path(source) if isinstance(source, (str, Path)) else None
    has_weights = path is not None and loader.is_source(path) and loader.has_weights(path)
    if load_format == "safetensors" and not has_weights:
        raise EngineError(f"load_format 'safetensors' needs {loader.needs}, got '{source}'.")
    return path if has_weights and load_format != "dummy" else None


def _read(made: type[PreTrainedModel], folder: Path, settings: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Read safetensors. transformers fills what a checkpoint lacks with random values; here that is an error."""
    if getattr(settings, "quantization_config", None) is not None:
        raise EngineError(
            "model_impl 'transformers' loads no quantised weights.", hint="use a checkpoint as it was before"
        )
    model: PreTrainedModel
    report: dict[str, Any]
    try:
        model, report = made.from_pretrained(
            folder, config=settings, dtype=dtype, local_files_only=True, use_safetensors=True, output_loading_info=True
        )  # type: ignore[misc]  # two with output_loading_info
    except (OSError, RuntimeError, ValueError) as problem:
        first = str(problem).strip().splitlines()[0]
        raise EngineError(f"transformers cannot load {folder}: {first}") from None
    lacking = [*report["missing_keys"], *report["mismatched_keys"]]
    if lacking:
        raise EngineError(
            f"{folder} lacks '{lacking[0]}' and {len(lacking) - 1} more.", hint="is it a checkpoint of this config?"
        )
    return model


def _check_parameters(model: PreTrainedModel, description: ModelDescription) -> None:
    """EngineError unless the class holds as many numbers as the description says, from which weights are accounted."""
    expected, found = num_parameters(description), model.num_parameters()
    with_buffers = sum({tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}.values())
    if expected not in (found, with_buffers):  # some buffers are weights (corrections of a router), some are not
        raise EngineError(
            f"{type(model).__name__} of transformers has {found:,} parameters, and {expected:,} as the "
            "engine describes it."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' progress bars and reports are not this engine's."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)


class TransformersDecoder:
    """Takes the place of Decoder. The tensors of a step, but for its logits, are transformers' own."""

    layer_run = None

    def __init__(self, split: SplitModel, way: Way) -> None:
        self._split, self.way = split, way
        self._hidden: torch.Tensor | None = None

    def forward(self, batch: StepBatch, kv: KvPool, workspace: Workspace) -> torch.Tensor:
        """See Decoder.forward."""
        self._hidden = None  # not two steps' at once
        self._hidden = self.way.hidden_states(batch, kv)
        logits = workspace["logits"][: batch.sampled_rows.shape[0]]
        if batch.sampled_rows.shape[0]:
            logits.copy_(self._split.logits(self._hidden[batch.sampled_rows]))
        return logits

    def logits_of_rows(self, workspace: Workspace, first: int, last: int) -> torch.Tensor:
        """See Decoder.logits_of_rows."""
        assert self._hidden is not None, "a step comes first"
        return workspace["logits"][: last - first].copy_(self._split.logits(self._hidden[first:last]))


class TransformersModel:
    """Config and weights on a device, run by a class of transformers; stays while pools come and go.

    is_dummy, weight_fingerprint, kernels_name: see EngineModel. ``decoder`` runs the first of ``ways`` until one is
    chosen.
    """

    implementation = "transformers"
    adapters: Any = None  # corrections are the decoder's
    adapter_bytes = 0
    is_capturable = False  # nobody knows what a class does on the host

    def __init__(self, config: EngineConfig, source: Any, device: Device, dtype_of: Callable[[str], str]) -> None:
        self.config: ModelDescription = read_config(source)
        self.dtype: str = dtype_of(self.config.dtype)
        scalar: torch.dtype = getattr(torch, self.dtype)
        model, self.is_dummy = load_class(config, source, self.config, scalar, device.torch_device)
        self.weight_bytes = num_parameters(self.config) * scalar.itemsize
        self.weight_fingerprint = weight_fingerprint(model.state_dict())
        kernels = select_kernels(config.attention_backend, device.torch_device, scalar)
        kernels = kernels.checked(self.config, config, self.dtype)
        self.ops: Ops = kernels.ops
        self.overlap_launches = kernels.overlap_launches
        self.draws: CudaDraws | None = kernels.draws
        self.kernels_name: str | None = kernels.name
        self.attention: AttentionBackend = kernels.attention
        self.split = SplitModel(model)
        self._own_attention = model.config._attn_implementation
        self.decoder: TransformersDecoder

    @property
    def ways(self) -> Sequence[Callable[[], Way]]:
        """How its steps might run, the fastest first; making one raises EngineError where it cannot be right."""
        one_by_one = partial(OneByOne, self.config, self.split, self._own_attention)
        if treats_rows_alike(self.config):
            return (partial(Together, self.config, self.split, self.attention), one_by_one)
        return (one_by_one, partial(one_by_one, by_token=True))

    def run_by(self, way: Way) -> None:
        """Let ``way`` run the steps from now on."""
        self.decoder = TransformersDecoder(self.split, way)

    def use_own_attention(self) -> None:
        """Let the class attend by itself, as before a step set another attention."""
        self.split.model.set_attn_implementation(self._own_attention)

    def reserve_decode(self, kv: KvPool, max_num_seqs: int) -> None:
        """Nothing is captured."""

    def kernel_buffers(self, config: EngineConfig) -> list[BufferSpec]:
        """What choosing tokens takes: the products are torch's."""
        return [] if self.draws is None else draw_buffers(config, self.config)

    def use_workspace(self, workspace: Workspace) -> None:
        """Its layers bring buffers of their own."""

    def release_workspace(self) -> None:
        """There is none to let go of."""


RunnableModel = LoadedModel | TransformersModel
"""What steps run: the engine's decoder, or a class of transformers."""
