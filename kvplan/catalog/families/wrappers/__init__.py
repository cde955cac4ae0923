"""Towers around a language model that another reader knows.

multimodal  where a wrapper's config has its language model
own_text    models that see whose language model is no other architecture's
towers      how many parameters a tower has; more_towers: those that several sections describe
"""
