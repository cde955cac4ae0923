"""The page: one file that needs nothing else, read on a phone, a screen or paper."""
