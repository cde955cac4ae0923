"""Text and tokens in the API process, without torch.

tokenizer       encoding prompts, decoding answers token by token: the tokenizers library alone
rendering       the model's chat template, rendered by a process of its own
template_process   that process: the system ends it when a template costs too much
template_messages  what the two say to each other
chat_template   the template in it, in a sandbox with bounds
"""
