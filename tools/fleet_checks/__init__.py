"""What a fleet's play says, beside engines: block for block and step for step.

trace            the first requests of a trace, shortened, as prompts of numbers
playing          such requests played, with a record of every step
vllm_scheduler   vLLM's own scheduler and block pool under a counted clock; runs in vLLM's Python
served           what a vLLM server of a tiny model finds of prompts that come one after the other
own_engine       kvplan's own engine without tensors, and its rules where they are not vLLM's
beside           both records compared, as lines of a table
"""
