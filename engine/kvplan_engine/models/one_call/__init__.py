"""All layers of a step in one call, where the kernels of a device have one for every part of a layer.

The CPU kernels have (csrc/cpu/layers.cpp). Everywhere else the decoder's loop runs layer by layer: on another device,
with the reference kernels, with projections that are not ours, with parts that the call lacks. Both give the same
bits (``tests/engine/kernels/runs/test_layer_run.py``).

    layer_run.py       what the decoder asks of such a call
    cpu_layer_run.py   the CPU kernels' call over one step
    layer_args.py      layers as the kernels take them; which are taken
    places.py          what layers share whose tokens lie in the same blocks
"""
