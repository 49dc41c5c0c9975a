"""Cleaning of text: keys (`settings`), rules (`rules`) and rounds of tasks (`tasks`)."""
