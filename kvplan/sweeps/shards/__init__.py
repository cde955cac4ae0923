"""A sweep in parts that know nothing of each other, for job arrays and CI: ``--shard K/N``, and ``kvplan merge``.

shard     which of a plan's trials a part runs, and how its manifest says so
merging   the parts' rows as the directory that one machine would have written; parts that do not make up one sweep,
          each refused with a sentence
"""
