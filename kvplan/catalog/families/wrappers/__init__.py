"""Towers around a language model that another reader knows.

multimodal  where a wrapper's config has its language model
towers      how many parameters a tower has
"""
