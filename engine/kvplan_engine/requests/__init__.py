"""What a user asks for and what comes back: requests, their sequences, sampling parameters, outputs. No torch.

``LLM`` and ``Engine`` create requests, the scheduler moves their sequences, the output processor appends their tokens.

    request           Request and Sequence: a prompt, its token streams, and how far their KV is computed
    adapter           which adapter a request wants
    prompt_logprobs   log-probabilities of a prompt's own tokens, gathered chunk by chunk
    sampling_params   how a request's tokens are chosen
    value_types       types of what a user gives, checked before anything is queued
    status            states of a sequence, finish reasons
    step_plan         what one step computes: passed from the scheduler to the model runner and the output processor
    stop              when a sequence ends
    detokenizer       tokens to text, piece by piece, with stop strings
    token_counts      occurrences of tokens, for penalties
    ngrams            where the end of a sequence has stood in it before
    drafts            which drafts are accepted, and how many were
    beams             beam search: how the beams of a prompt are ranked
    chat              conversations as prompts, by a tokenizer's template
    outputs           what a step and a finished request return
    stats             counts and times of a step
"""
