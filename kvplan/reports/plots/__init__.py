"""The pictures of a run, one file each. matplotlib is imported only when one is drawn."""
