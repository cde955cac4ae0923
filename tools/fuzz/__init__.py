"""Seeded, bounded fuzzers of what kvplan reads from others.

* ``harness`` — runs a target's cases, each by itself under a time and a memory limit, and counts what came of them
* ``mutations`` — damages to bytes and to JSON documents that several targets share
* ``commands`` — runs a command of kvplan in this process, and looks at its answer
* ``engine_loading`` — loads a model's files as the engine does
* ``targets/`` — one file per input: how a case is made, and what is a fault
"""
