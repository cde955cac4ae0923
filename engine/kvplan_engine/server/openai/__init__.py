"""OpenAI's completions and chat completions, with vLLM's additions: bodies in, answers and streams out.

errors       an error as a client gets it: status, body, headers
json_size    how much there is to decode in a body
requests     the bodies of completions, chat completions, tokenize and detokenize
parameters   from a body to SamplingParams
choices      one choice of an answer: tokens to text, stop strings, log-probabilities
logprobs     log-probabilities in OpenAI's two shapes
plain_stream chunks of ordinary tokens, written as their frame arrives
answering    running prompts through the engine: whole answers and streams
shapes       the chunks and the answer of a request, as far as both kinds have them
completion_shape, chat_shape   what is different between the two
usage        token counts and times at the end of an answer
"""
