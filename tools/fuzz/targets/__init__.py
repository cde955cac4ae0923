"""One file per kind of input. Each has ``open_target()``, a context manager that gives a ``harness.Target``.

bodies           HTTP heads and bodies, sent to a small server
config           config.json, for ``estimate`` and ``plan``
gguf             GGUF files, for the planner's reader and the engine's
safetensors      headers and indexes of safetensors
lora             directories of LoRA adapters
logs             start-up logs, for ``explain``
metrics_pages    pages of metrics and streams of a hostile server, for ``load`` and ``top``
run_directories  files of a run directory, for ``report``, ``merge`` and ``sweep --resume``
workloads        workload files
"""
