"""Cleaning of text: `settings` has the rules' keys, `rules` the rules, `tasks` the rounds."""
