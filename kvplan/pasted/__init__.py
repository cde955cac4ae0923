"""Commands that people paste: what ``vllm serve ...`` says, as settings.

options    which option is which setting, and how the engine reads its value
shell      a line as words: what starts vLLM in it
command    one whole command, read strictly: for ``estimate -- vllm serve ...`` and ``plan --like``
text       commands and mentions of options in any text, read leniently: for ``explain``
"""
