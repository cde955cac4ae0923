"""Logits to tokens. The model runner and the step loop call the sampler; sampling parameters are in ``requests``.

sampler           greedy and random tokens, log-probabilities, seeds
token_logprobs    log-probabilities of tokens that were chosen elsewhere
prompt_logprobs   log-probabilities of the prompts in a step
logits            minimum length, bias and penalties, applied to a row of logits
truncation        min-p, top-k and top-p
seeds             where random numbers come from
draw_rows         what a sequence asks of the kernel that draws tokens on a GPU
"""
