"""Which engine answers a request, where several hold the same model.

prefixes  what each engine probably has in its prefix cache: digests of prompts that were sent there
loads     what an engine has to do already
router    weighs the two against each other
"""
