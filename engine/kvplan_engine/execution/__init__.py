"""Runs steps: a plan of the scheduler becomes tensors, the model runs over them, tokens come back.

starting           device, model and carver of an engine: loaded, or only counted; steps of a class of transformers
                   against its own forward pass
carving            how the device's memory is divided once the weights are loaded
serving            what serves requests from one pool: made and dropped together
model_runner       the tensors of an engine and one step over them
drafting           a draft model beside the engine's own, or the model's own layer for multi-token prediction
profile_step       one step at the largest batch, to measure what a step takes
loop/              the engine's steps, one after the other
inputs/            a step's inputs, from a plan to the device
choosing           which tokens a step gives
graphs             captured steps
capacity           an engine without tensors
ranks/             several processes that share every layer
"""
