"""Hand-over to other people's tools.

What lives here: writing what this project made in the formats of other projects, and checking that
they read it as we do. So far the tokenizer, for Hugging Face's libraries.

What does not: anything that a stage of the job needs, and run-time dependencies on those tools. The
files are written from their formats alone; only the checks import the tools, when called.
"""
