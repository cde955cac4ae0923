"""An engine without tensors (``load_format="none"``).

account            the memory divided as it would be
runner             its steps: random tokens
"""
