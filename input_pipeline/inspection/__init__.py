"""Inspection of text before anything is trained on it.

`characters` has tables of code points, `scanning` the hot loops over them, `tallies` counts of what
repeats. `language_identification` learns the languages of the corpus, `files` is the pass over a
file, `findings` what all passes say about a language, `page` the report, `brief` what a build says.
"""
