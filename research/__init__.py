"""Claims of the papers, tested: studies as data, one runner, one form of results."""
