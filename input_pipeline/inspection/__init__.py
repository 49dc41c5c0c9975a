"""Inspection of text before anything is trained on it.

`characters` has tables of code points, `scanning` the hot loops over them, `tallies` counts of
repetitions. `language_identification` learns the languages of the corpus. `files` is the pass over
a file, `findings` the record of a language, `page` the report, `brief` the warnings of a build.
"""
