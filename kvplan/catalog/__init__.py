"""What is known of models, devices and engines: facts with their sources, no arithmetic of serving.

Everything above reads it; it imports nothing of kvplan but units, paths, errors and settings.

spec, tensors    a model, layer by layer (``ModelSpec``), and its weights, tensor by tensor
models           from what a user types to a ModelSpec: profile, directory, config.json, GGUF file, hub id; a directory
                 with a LoRA adapter: its base, and the slot that it needs
variants         names of quantized and mirrored checkpoints whose shape ships under another name; names of Ollama's
                 library as those of the checkpoints
reader, registry from a config.json to a ModelSpec: the reader that the row of its architecture names, and its ``Body``
config_view      checked access to a config's keys
parts            attention, feed-forward, mixture: the parts that the readers assemble
families/        one module per kind of architecture
checkpoint/      what the weights beside a config.json are, from their headers
spec_of_checkpoint   a ModelSpec with its checkpoint, and where the two do not agree
speculation/     what drafts tokens for a model: its own layers, a second model, heads
gguf/            the same from a GGUF file's header
quantization/    ``quantization_config``: in which format each module is, by the rules of vLLM's loaders
hub              config.json and safetensors headers from the Hugging Face hub; the same without its client
devices/         GPUs and CPU hosts: data sheets, what vLLM refuses on them, what sweeps measured
architectures    what profiles/architectures.json says of each architecture: reader, how it runs, GGUF, vLLM
engines          which engine a question is about, and the defaults of kvplan's own
releases/        facts of vLLM, SGLang and TensorRT-LLM by release; nothing else compares releases
typed_json       rows of shipped tables, checked against the dataclass that names them
vllm_refusals    what a release of vLLM does not serve: architectures, and settings that its command line refuses
vllm_registry    every architecture of vLLM's list, and whether it is sized
published_errors how far predicted speeds were from published measurements; startup_errors: predicted start-ups
"""
