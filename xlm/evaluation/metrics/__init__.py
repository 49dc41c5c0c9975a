"""Scores of the downstream tasks, by the rules of each dataset's official script.

Functions from gold and predicted labels, answers or vectors (numpy) to scores between 0 and 1
(correlations between -1 and 1). They know neither models, files nor jax.
"""
