"""Inspection of text before anything is trained on it; numba, fontTools and numpy only.

`characters` has tables of code points, `scanning` the hot loops over them, `language_identification`
a model of the corpus's own languages, `tallies` counts of what repeats, `files` the pass over a
file, `findings` what all passes say about a language, and `page` the report.
"""
