"""Who proposes tokens ahead of the model (``speculative_config``); the next step computes and verifies them.

The step loop asks for proposals behind each step; ``requests.drafts`` says which of them are accepted.

    proposer    the protocol; n-grams of the sequence itself, or places that a drafter fills
"""
