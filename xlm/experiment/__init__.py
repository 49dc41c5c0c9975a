"""Builders of objects from a config. No other package reads a ConfigDict.

Every section of a config maps to one settings class, field by field, so an unknown or missing key
is an error here, before anything runs. The class's docstring documents the keys.

`data` does not need jax, so that vocabularies can be built and text tokenised without it.
"""

from xlm.common import packages

packages.find_recipes()
