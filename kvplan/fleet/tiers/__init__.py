"""What a prefix cache of any size finds of a trace: reuse distances, bounds, and what a tier of memory saves.

chains       prompts as chains of blocks
distances    hits of a least recently used cache of every size, from one pass
belady       the most that any cache of a size can find
"""
