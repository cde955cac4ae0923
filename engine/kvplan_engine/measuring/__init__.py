"""Speeds of the CUDA kernels and of the engine on a GPU, a module for each kind of section.

attention, prefill      attention kernels alone
operations              other kernels and copies; matrix products, by cuBLAS and by our own kernel
formats                 products with weights in few bits, and experts
engine, modes           steps and throughput of the engine; where a step's time goes, ways to run one
memory                  the planner's figures and a sweep
baseline                transformers and torch
checks                  the tests, compute-sanitizer, ncu
script                  runs sections, each as a process: `kvplan doctor --measure`
support                 rows and timing; sections as processes that end in time
"""
