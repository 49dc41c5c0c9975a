"""Keys of the rules that clean text, for every command that checks a config."""

import dataclasses

from xlm.common import schema


@dataclasses.dataclass(frozen=True)
class CleaningSettings:
    """Rules in their order of application; the `clean` section of a config.

    Attributes:
      bad_lines: most of a file's bytes, as a share, to leave out in lines that are not text: not
        UTF-8, NUL, half characters, JSON without a text; 0 raises an error for such a line.
      html: remove HTML tags and decode entities.
      urls: remove URLs and e-mail addresses.
      odd_characters: remove control characters and invisible ones.
      apostrophes: apostrophes between letters: "keep", "straight" or "curly".
      digits: "keep", or "ascii" for 0 to 9 in place of the decimal digits of other scripts.
      long_lines: cut lines of more than 8,192 characters at ends of sentences.
      least_letters: drop lines of fewer letters.
      other_script: drop lines in another script than the file's.
      other_language: drop lines that are more like another language of the corpus.
      boilerplate: drop lines of at least 20 bytes found in so many documents; 0 drops none.
      repeated_lines: copies of a line that a language keeps, the first ones; 0 keeps all.
      near_copies: drop passages that nearly repeat an earlier one.
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
