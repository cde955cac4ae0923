"""The formats that have a name: ModelOpt's, AMD Quark's, torchao's and the OCP's."""

from __future__ import annotations

from typing import Final

from kvplan.catalog.quantization.formats import QuantizationSpec

MXFP4: Final = QuantizationSpec("mxfp4", 4, "group", group_size=32, scale_dtype="fp8")
"""One 8-bit exponent for 32 weights (OCP Microscaling, section 5)."""
MXFP8: Final = QuantizationSpec("mxfp8", 8, "group", group_size=32, scale_dtype="fp8")
MXFP6: Final = QuantizationSpec("mxfp6", 6, "group", group_size=32, scale_dtype="fp8")
NVFP4: Final = QuantizationSpec("nvfp4", 4, "group", group_size=16, scale_dtype="fp8")
"""One fp8 scale for 16 weights, and a float32 one for the matrix."""
NVFP4_STATIC: Final = QuantizationSpec("nvfp4", 4, "group", group_size=16, scale_dtype="fp8", static_input_scale=True)

ALGORITHMS: Final[dict[str, QuantizationSpec]] = {
    "FP8": QuantizationSpec("modelopt", 8, "tensor", scale_dtype="float32", static_input_scale=True),
    "FP8_PER_CHANNEL_PER_TOKEN": QuantizationSpec("modelopt", 8, "channel", scale_dtype="float32"),
    "FP8_PB_WO": QuantizationSpec("modelopt", 8, "block", block_shape=(128, 128), scale_dtype="float32"),
    "FP8_BLOCK_SCALES": QuantizationSpec("modelopt", 8, "block", block_shape=(128, 128), scale_dtype="float32"),
    "NVFP4": NVFP4_STATIC,
    "W4A16_NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A8_NVFP4_FP8": NVFP4,
    "MXFP8": QuantizationSpec("modelopt", 8, "group", group_size=32, scale_dtype="fp8"),
    "MXFP4": MXFP4,
    "W4A16_AWQ": QuantizationSpec("modelopt", 4, "group", group_size=128),
    "W4A8_AWQ": QuantizationSpec("modelopt", 4, "group", group_size=128),
    "INT4_AWQ": QuantizationSpec("modelopt", 4, "group", group_size=128),
    "IQ2_XS": QuantizationSpec("modelopt", 74 * 8 / 256, "tensor", scale_dtype="fp8"),
    "IQ2_XXS": QuantizationSpec("modelopt", 66 * 8 / 256, "tensor", scale_dtype="fp8"),
    "Q8_0": QuantizationSpec("modelopt", 34 * 8 / 32, "tensor", scale_dtype="fp8"),
    "INT8_SQ": QuantizationSpec("modelopt", 8, "channel", scale_dtype="float32"),
    "W8A8_SQ_PER_CHANNEL": QuantizationSpec("modelopt", 8, "channel", scale_dtype="float32"),
}
"""ModelOpt's names of weight formats. vLLM 0.33 loads those of ``LINEAR_ALGOS``, ``_BLOCK_FP8_MOE_ALGOS`` and
``B12X_BLOCK_CODECS``, whose blocks hold their scales."""
