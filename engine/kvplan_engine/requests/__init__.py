"""What a user asks for and what comes back: requests, their sequences, sampling parameters, outputs. No torch.

``LLM`` and ``Engine`` create requests, the scheduler moves their sequences, the output processor appends their tokens.

    request           Request and Sequence: a prompt, its adapter, its token streams and how often a token occurs in
                      them, how far their KV is computed, log-probabilities of the prompt's tokens
    sampling_params   how a request's tokens are chosen; types of what a user gives, checked before anything is queued
    status            states of a sequence, finish reasons
    step_plan         what one step computes: passed from the scheduler to the model runner and the output
                      processor; counts and times of a step
    stop              when a sequence ends
    detokenizer       tokens to text, piece by piece, with stop strings
    drafts            where the end of a sequence has stood before; which drafts are accepted, and how many were
    beams             beam search: how the beams of a prompt are ranked
    chat              conversations as prompts, by a tokenizer's template
    outputs           what a step and a finished request return
"""
