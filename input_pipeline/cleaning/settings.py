"""Keys of the rules that clean text, for every command that checks a config."""

import dataclasses

from xlm.common import schema


@dataclasses.dataclass(frozen=True)
class CleaningSettings:
    """Rules in the order in which they are applied; the `clean` section of a config.

    Attributes:
      bad_lines: largest share of a file's bytes left out in lines that are no text: not UTF-8,
        NUL, half characters, JSON without a text; 0 for errors.
      html: whether HTML tags are removed and entities decoded.
      urls: whether URLs and e-mail addresses are removed.
      odd_characters: whether control characters and invisible ones are removed.
      apostrophes: apostrophes between letters: "keep", "straight" or "curly".
      digits: "keep", or "ascii" for 0 to 9 in place of the decimal digits of other scripts.
      long_lines: whether lines of more than 8,192 characters are cut at ends of sentences.
      least_letters: lines of fewer letters are dropped.
      other_script: whether lines are dropped whose letters are of another script than the file's.
      other_language: whether lines are dropped that are more like another language of the corpus.
      boilerplate: number of documents; lines of at least 20 bytes in as many are dropped; 0 for
        none.
      repeated_lines: copies of a line that a language keeps, the first ones; 0 keeps all.
      near_copies: whether passages are dropped that are nearly the same as an earlier one.
    """

    bad_lines: float = schema.key(0.0, at_least=0, below=1)
    html: bool = schema.key(False)
    urls: bool = schema.key(False)
    odd_characters: bool = schema.key(False)
    apostrophes: str = schema.key("keep", choices=("keep", "straight", "curly"))
    digits: str = schema.key("keep", choices=("keep", "ascii"))
    long_lines: bool = schema.key(False)
    least_letters: int = schema.key(0, at_least=0)
    other_script: bool = schema.key(False)
    other_language: bool = schema.key(False)
    boilerplate: int = schema.key(0, at_least=0)
    repeated_lines: int = schema.key(0, at_least=0)
    near_copies: bool = schema.key(False)

    def __post_init__(self):
        schema.check(self, "clean")
