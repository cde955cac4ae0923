"""``quantization_config``: in which format each module of a checkpoint is, as vLLM's loaders decide it.

reading      where the section stands, which loader reads it
formats      a format (``QuantizationSpec``) and the rules that say which module is in which (``ModuleRules``)
modules      the full names of a model's modules, in the checkpoint's spelling and in vLLM's, and their class
matching     how lists name modules: whole names, parts, globs, regular expressions
recipes      formats that have a name
floats, integers, compressed, modelopt, quark, torchao    the readers, by loader
sections     what sections of several formats have in common
"""
