"""The verbs of `xlm`: a module each, whose docstring is its help; `main` finds and runs them."""
