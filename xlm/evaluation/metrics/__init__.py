"""Scores of the downstream tasks, by the rules of each dataset's official script.

The functions take labels, answers or vectors (numpy), without models, files or jax. Scores are
between 0 and 1, correlations between -1 and 1.
"""
