"""One module per kind of model: from a config to the layers it describes."""
