"""A config for each downstream task; docs/fine_tuning.md has the table of them."""
