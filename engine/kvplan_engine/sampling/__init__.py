"""Logits to tokens. The model runner and the step loop call the sampler; sampling parameters are in ``requests``.

sampler           greedy and random tokens, log-probabilities, seeds
token_logprobs    log-probabilities of tokens that were chosen elsewhere, and of the prompts in a step
logits            minimum length, bias, penalties; min-p, top-k, top-p; where random numbers come from
draw_rows         what a sequence asks of the kernel that draws tokens on a GPU
"""
