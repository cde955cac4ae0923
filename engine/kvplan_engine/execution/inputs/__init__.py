"""A step's inputs: a plan becomes the tensors that the model reads.

batch              a plan turned into the model's inputs
step_inputs        the host's side of a step's index buffers
step_indices       these, cut to what a step fills, for other ranks
group_tables       block tables, slots and lengths of each group of layers
step_tables        what the layers of a group read of a step
staging            inputs to the device and tokens from it, without waiting
adapters           the adapters of a step's sequences
adapter_rows       which rows they correct, where captured steps read it
"""
