"""Tests of declarations: what is refused names its place and value, what is written is read."""

import pathlib
import tempfile
from typing import Annotated, Any

import msgspec
from absl.testing import parameterized

from xlm.common import declarations
from xlm.common.declarations import Artefact, Count, Name


class _Part(Artefact, frozen=True):
    rows: Count
    scale: Annotated[float, msgspec.Meta(gt=0)] = 1.0


class _Whole(Artefact, frozen=True):
    parts: dict[Name, dict[str, _Part]]
    shapes: list[tuple[int, int]]
    anything: Any = None


_RIGHT = {"parts": {"en": {"train": {"rows": 3}, "held": {"rows": 0}}}, "shapes": [[1, 2]]}


def _changed(path, value):
    found = msgspec.json.decode(msgspec.json.encode(_RIGHT))
    *parents, last = path
    place = found
    for one in parents:
        place = place[one]
    place[last] = value
    return found


class DeclarationsTest(parameterized.TestCase):
    def test_what_is_written_is_read(self):
        whole = _Whole({"en": {"train": _Part(3, 0.5)}}, [(1, 2)], {"a": None})
        content = msgspec.json.encode(whole)
        self.assertEqual(declarations.parse(content, _Whole, place="a", remedy="b"), whole)

    @parameterized.parameters(
        (("parts", "en", "held", "rows"), -1, "parts.en.held.rows is -1, must be a whole number >"),
        (("parts", "en", "held", "rows"), True, "parts.en.held.rows is true, must be a whole num"),
        (("parts", "en", "train", "rows"), None, "parts.en.train.rows is null, must be a whole"),
        (("parts", "en", "train", "scale"), 0, "parts.en.train.scale is 0, must be a number > 0"),
        (("parts", "en", "train", "row"), 0, "parts.en.train has the unknown field row"),
        (("parts", "en", "train"), {}, "parts.en.train lacks the field rows"),
        (("parts", "../en"), {}, "a key of parts must be text without slashes and control"),
        (("shapes", 0, 1), "x", 'shapes.0.1 is "x", must be a whole number'),
        (("shapes", 0), [1], r"shapes.0 is \[1\], must be a list of length 2"),
        (("shapes",), {}, "shapes is {}, must be a list"),
        (("more",), 1, "the object has the unknown field more"),
        (("a\nb",), 1, r"the object has the unknown field `a\\nb`"),
    )
    def test_a_wrong_value_is_named(self, path, value, expected):
        content = msgspec.json.encode(_changed(path, value))
        with self.assertRaisesRegex(ValueError, f"^meta.json: {expected}.*; copy it$"):
            declarations.parse(content, _Whole, place="meta.json", remedy="copy it")

    @parameterized.parameters(
        b"", b"{", b"[" * 10_000, b'{"anything": NaN}', b'{"anything": 1e999}', b'{"\xff": 1}'
    )
    def test_what_is_not_json_is_named(self, content):
        with self.assertRaisesRegex(ValueError, "^a: not JSON .*; copy it$"):
            declarations.parse(content, _Whole, place="a", remedy="copy it")

    def test_lines_are_numbered_and_one_that_was_cut_off_is_left_out(self):
        content = b'{"rows": 1}\n{"rows": 2}\n{"ro'
        options = {"place": "a", "remedy": "b"}
        found = list(declarations.parse_lines(content, _Part, **options))
        self.assertEqual(found, [_Part(1), _Part(2)])
        with self.assertRaisesRegex(ValueError, "^a, line 2: rows is "):
            list(declarations.parse_lines(content.replace(b"2", b"[]"), _Part, **options))

    @parameterized.parameters("en", "zh-Hans", "opus.en-de", "français 2", "-x", "é" * 50)
    def test_names(self, text):
        self.assertEqual(declarations.check_name(text, "a", "b"), text)

    @parameterized.parameters(
        "", ".", "..", ".x", "a/b", "../a", "a\\b", "a\nb", "a\0", "a\x9b", "é" * 51, "\udc80",
        "<b>", "a|b",
    )  # fmt: skip
    def test_what_is_no_name(self, text):
        with self.assertRaisesRegex(ValueError, "is no name: 1 to 100 bytes"):
            declarations.check_name(text, "corpus.languages", "rename it")

    def test_a_file_that_is_too_large_is_refused_before_it_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "large")
            with path.open("wb") as file:
                file.truncate(2 << 30)  # takes no room
            with self.assertRaisesRegex(ValueError, "large: 2,147,483,648 bytes, must be at most"):
                declarations.read(path, _Whole, remedy="")
