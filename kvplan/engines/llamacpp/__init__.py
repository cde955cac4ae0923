"""llama.cpp's server.

adapter   what the sweep calls
options   settings -> command line, and back to what the planner predicts from
model     what the planner expects of it
log       what a start prints
failures  its words for what went wrong
"""
