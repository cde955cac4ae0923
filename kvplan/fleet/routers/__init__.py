"""Which replica a request goes to.

interface   what a router is asked, and what it may look at
in_turn     round robin, and the replica with the least in hand
"""
