"""Multilingual encoders: models, objectives, training, evaluation, and the way in."""
