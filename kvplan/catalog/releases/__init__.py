"""Facts of serving engines that change from release to release, and the only place that compares releases.

``profiles/releases/ENGINE.json`` has one row per fact: what it says, its type, its value from which release on, the
file and symbol of the engine's source that decide it, and the newest release in which that was read. Everything else
asks a release for its facts by name.

facts     a table's rows, checked against the class that names its facts, and the values that hold in one release;
          releases as they are printed, and as numbers
vllm      vLLM's facts; sglang, trtllm: SGLang's and TensorRT-LLM's
"""
