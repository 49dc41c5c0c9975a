"""Data of the downstream tasks: from the datasets' own files to batches of token ids.

`loading` reads examples (`examples`) by the readers of a kind of tasks (`text_pairs`, `tagged`,
`questions`, `translation`, or `tfds_examples` for tensorflow-datasets). `features` turns them into
token ids, `batches` these into batches.
"""
