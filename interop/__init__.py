"""Exchange with other people's tools.

What lives here: writing what this project made in the formats of other projects, checking that they
read it as we do, and reading what they made: tokenizers and masked language models of Hugging
Face's libraries, and such a model's vocabulary exchanged for another or cut down. A model that they
have no format for is written in one of ours, which their tools for tensors read.

What does not: anything that a stage of the job needs, and run-time dependencies on those tools. The
files are read and written from their formats alone; only the checks import the tools, when called.
"""
