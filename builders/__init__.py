"""From a config to the objects that do the work. Only this room reads a ConfigDict.

Every section of a config is one settings class, field by field, so an unknown key or a missing one
is an error here, before anything runs. The class's docstring is the documentation of the keys.

`data` needs no jax, so that vocabularies are built and text is tokenised without it; `model` does.
"""
