"""What a prefix cache of any size finds of a trace: reuse distances, bounds, and what a tier of memory saves.

chains          prompts as chains of blocks
distances       hits of a least recently used cache of every size, from one pass
replayed        hits of one size, where layers keep windows or states
layouts         what a replica's cache holds of a prompt, by model, layout and KV format
splits          which replica's cache a request meets
curves          all of that together: one layout, any size, all replicas; the most that any cache of a size can find
worth           what a tier of a size saves and costs; how fast KV comes from a tier, and how long computing it again
                takes
question        what ``kvplan cache`` is asked, and its answer as types; the question from values as people write them
answering       from the question to the answer
words           the answer in sentences; settings_lines: settings to paste; document: as JSON
"""
