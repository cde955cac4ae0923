"""A step's inputs: a plan becomes the tensors that the model reads.

batch              a plan turned into the model's inputs
step_inputs        the host's side of a step's index buffers; these, cut to what a step fills, for other ranks
group_tables       block tables, slots and lengths of each group of layers, and what its layers read of a step
staging            inputs to the device and tokens from it, without waiting
adapter_rows       the adapters of a step's sequences: which rows they correct, where captured steps read it
"""
