"""``quantization_config``: in which format each module of a checkpoint is, as vLLM's loaders decide it.

reading      where the section stands, which loader reads it; the readers of plain floats
beside       ModelOpt's file beside a config.json
formats      formats (``QuantizationSpec``), some with names, and rules for which module is in which (``ModuleRules``)
modules      the full names of a model's modules, in the checkpoint's spelling and in vLLM's, and their class
matching     how lists name modules: whole names, parts, globs, regular expressions
integers, compressed, modelopt, quark, torchao    the readers, by loader
notes        what vLLM would refuse, and what a config leaves open
sections     what sections of several formats have in common
"""
