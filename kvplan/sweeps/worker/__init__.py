"""The worker of a sweep. ``client``, ``early`` and ``protocol`` are the parent's; the rest runs in it.

client           the parent's end: run a trial, with a limit for each stage
early            a worker that starts before its sweep is planned, or for one question
protocol         the messages
process          the worker's main loop
engine_host      the engine, kept from trial to trial; what is said of the kernels that it computes with
answers          what the process answers to each message: the device that it opens, what an engine keeps free of it
trial            one trial: the engine made ready, the requests served, the row filled; each request as a line of
                 requests.jsonl; trials that compute nothing: steps instead of seconds
load_generator   sends requests when they are due and steps the engine
watch            progress messages and memory readings meanwhile
metrics          latency, throughput and occupancy from what was recorded (vLLM's definitions)
failures         what a failed trial is recorded as
"""
