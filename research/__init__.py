"""Tests of the papers' claims: studies as data, one runner, one format of results."""
