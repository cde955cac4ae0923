"""OpenAI's completions and chat completions, with vLLM's additions: bodies in, answers and streams out.

errors       an error as a client gets it: status, body, headers
requests     the bodies of completions, chat completions, tokenize and detokenize
parameters   from a body to SamplingParams; how much there is to decode in a body
choices      one choice of an answer: tokens to text, stop strings, log-probabilities in OpenAI's two shapes; chunks of
             ordinary tokens, written as their frame arrives
answering    running prompts through the engine: whole answers and streams; token counts and times at their end
shapes       the chunks and the answer of a request: of completions and of chats
"""
