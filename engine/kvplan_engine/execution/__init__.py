"""Runs steps: a plan of the scheduler becomes tensors, the model runs over them, tokens come back.

step_loop          the engine's steps, one ahead of the tokens where that is possible
step_observer      who wants to know what each step does and where its time goes
starting           device, model and carver of an engine: loaded, or only counted
step_runner        what the step loop needs of a runner
model_runner       the tensors of an engine and one step over them
capacity           the account of an engine without tensors
capacity_runner    its steps: random tokens
batch              a plan turned into the model's inputs
step_inputs        the host's side of a step's index buffers
group_tables       block tables, slots and lengths of each group of layers
step_tables        what the layers of a group read of a step
staging            inputs to the device and tokens from it, without waiting
choosing           which tokens a step gives
draws              how tokens are chosen on a device, where captured steps read it
adapter_rows       which rows adapters correct, where captured steps read it
graphs             steps captured as graphs
graph_sizes        which sizes of them
output_processor   tokens to their sequences: appended, checked for an end, reported
carving            how the device's memory is divided once the weights are loaded
profile_step       one step at the largest batch, to measure what a step takes
self_check         steps of a class of transformers against its own forward pass
"""
