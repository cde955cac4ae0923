"""Text and tokens in the API process, without torch.

tokenizer       encoding prompts, decoding answers: the tokenizers library alone
decoding        an answer's text, token by token
byte_level      the same where every token stands for bytes
stop_strings    where an answer's text ends, and what must be held back until that is known
chat_template   the model's template, in a sandbox with bounds
"""
