"""Text of any language in Markdown."""

import re
import unicodedata


def escaped(text: str) -> str:
    """Escape the marks of Markdown and HTML."""
    return re.sub(r"([\\`*_|<>\[\]~$&])", r"\\\1", text)


def without_html(text: str) -> str:
    """Escape what would be HTML or end a cell, and leave the marks of Markdown."""
    return re.sub(r"([<>&|])", r"\\\1", text)


def cell(text: str) -> str:
    """Escape text for a Markdown cell; isolate right-to-left text from its surroundings."""
    is_right_to_left = any(unicodedata.bidirectional(c) in ("R", "AL") for c in text)
    return f"\u2068{escaped(text)}\u2069" if is_right_to_left else escaped(text)
