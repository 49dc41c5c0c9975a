"""Builders of objects from a config. No other package reads a ConfigDict.

Every section of a config maps to one settings class, field by field, so an unknown or missing key
is an error here, before anything runs. The class's docstring documents the keys.

`data` needs no jax: building a vocabulary and tokenising text run without it.
"""

from xlm.common import packages

packages.find_recipes()
