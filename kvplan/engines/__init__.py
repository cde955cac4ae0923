"""Other engines in a sweep: started as servers, loaded over HTTP, asked what they hold, and stopped again.

An ``EngineAdapter`` knows one engine: its command line, its start-up log, its words for each failure, and the planner's
prediction for it. Everything else is the same for all of them.

    interface  what an adapter is, and what goes in and out of it
    serving/   a server's life: its process, its port, the wait until it serves, its end
    arguments  which of an engine's own options are settings of a sweep
    server     one server of an engine
    starter    servers started, or forked from the engine's imports
    rows       what a server said and a load measured, in the sweep's columns
    steps      each step of a server that tells them, in the sweep's columns
    guards     what holds while a server is loaded, and how a sweep shows its load
    host       the trials of a sweep, served; a model directory without weights
    vllm/      vLLM's adapter
    llamacpp/  that of llama.cpp's server
    documented/  those of SGLang and TensorRT-LLM, which were not run
    running    a server that runs already
    registry   which engines there are; an adapter as a sweep plans with it
"""
