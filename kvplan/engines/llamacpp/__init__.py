"""llama.cpp's server.

adapter   what the sweep calls; what the planner expects of it
options   settings -> command line, and back to what the planner predicts from
log       what a start prints; its words for what went wrong
"""
