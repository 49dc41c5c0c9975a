"""Lines too long for a sentence: all readers of text cut them in the same way."""

import re

# In characters. Lines of ordinary text are shorter; pieces are about as long as a long sentence.
LONGEST = 8192
_PIECE = 512
# In order of preference: up to the end of a sentence, up to a space, or anywhere.
_PIECES = re.compile(
    rf".{{{_PIECE // 2},{_PIECE}}}(?:(?<=[.!?…؟])(?=\s)|(?<=[。！？।॥።]))"
    rf"|.{{1,{_PIECE}}}(?=\s|\Z)"
    rf"|.{{1,{_PIECE}}}",
    re.DOTALL,
)


def cut_line(line: str) -> list[str]:
    """Return a line, or pieces of at most 512 characters if it has more than `LONGEST`."""
    if len(line) <= LONGEST:
        return [line]
    return [piece for found in _PIECES.findall(line) if (piece := found.strip())]
