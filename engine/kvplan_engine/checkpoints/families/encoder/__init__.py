"""Decoders that attend to an encoder as well. The encoder itself is left out.

t5       T5, mT5, UMT5
whisper  Whisper
mllama   Llama 3.2 Vision
"""

from kvplan_engine.checkpoints.families.encoder.mllama import read_mllama
from kvplan_engine.checkpoints.families.encoder.t5 import read_t5
from kvplan_engine.checkpoints.families.encoder.whisper import read_whisper
from kvplan_engine.checkpoints.families.family import Family

ENCODER = (
    Family(("T5ForConditionalGeneration", "MT5ForConditionalGeneration", "UMT5ForConditionalGeneration"), read_t5),
    Family(("WhisperForConditionalGeneration",), read_whisper),
    Family(("MllamaForConditionalGeneration",), read_mllama),
)
