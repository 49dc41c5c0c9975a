"""Data of the downstream tasks: from the datasets' own files to batches of token ids.

`loading` reads examples (`examples`) by the readers of a kind of tasks (`text_pairs`, `tagged`,
`questions`, `sentences`, or `tfds_examples` for tensorflow-datasets). `features`
turns them into token ids. `batches` makes batches of similar lengths.
Translation has `loading.load_translations` and `translation_features`.
"""
