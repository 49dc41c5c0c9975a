"""Tests of arrays that are written in pieces and read from several files."""

import os
from unittest import mock

import numpy as np
from absl.testing import parameterized

from input_pipeline import array_files
from input_pipeline.array_files import ShardedRows
from tests.folders import FolderTest


class WriterTest(FolderTest):
    @parameterized.parameters(((), np.uint16, 0), ((7,), np.uint32, 1), ((7,), np.int64, 10_000))
    def test_the_bytes_are_those_of_numpy(self, shape, dtype, count):
        whole = np.random.default_rng(0).integers(0, 60_000, (count, *shape)).astype(dtype)
        np.save(self.folder / "whole.npy", whole)
        with array_files.array_file(self.folder / "pieces.npy", shape, dtype) as file:
            for start in range(0, count, 999):
                file.append(whole[start : start + 999].astype(np.int64))
        read = [(self.folder / name).read_bytes() for name in ("whole.npy", "pieces.npy")]
        self.assertEqual(*read)


class ArrayFileTest(FolderTest):
    @parameterized.parameters(((20,),), ((5, 4),))
    def test_it_reads_as_the_array(self, shape):
        whole = np.arange(20, dtype=np.uint16).reshape(shape)
        np.save(self.folder / "a.npy", whole)
        found = array_files.ArrayFile(self.folder / "a.npy", (None, *shape[1:]))
        self.assertEqual((found.shape, found.dtype, len(found)), (shape, np.uint16, shape[0]))
        np.testing.assert_array_equal(np.asarray(found, np.int32), whole)
        np.testing.assert_array_equal(found[2:4], whole[2:4])
        np.testing.assert_array_equal(found.read(1, 3), whole[1:3])
        np.testing.assert_array_equal(found.entry(2), whole[2])
        with self.assertRaisesRegex(ValueError, r"a.npy: an array of shape \((20,|5, 4)\)"):
            array_files.ArrayFile(self.folder / "a.npy", (None, 9))

    def test_a_file_that_is_cut_off_while_it_is_open(self):
        path = self.folder / "a.npy"
        np.save(path, np.arange(6000, dtype=np.uint16).reshape(1000, 6))
        found = array_files.ArrayFile(path, (None, 6))
        np.testing.assert_array_equal(found[999], [5994, 5995, 5996, 5997, 5998, 5999])
        os.truncate(path, path.stat().st_size - 8)
        for read in (lambda: found[:], lambda: found[999], lambda: found.read(998, 1000)):
            with self.assertRaisesRegex(ValueError, "a.npy: ends before entry 1000; .* shorter"):
                read()

    def test_an_entry_beyond_the_limit_is_named(self):
        whole = np.arange(20, dtype=np.uint16).reshape(5, 4)
        np.save(self.folder / "a.npy", whole)
        found = array_files.ArrayFile(self.folder / "a.npy", (5, 4), limit=14)
        np.testing.assert_array_equal(found[:3], whole[:3])
        for index in (3, slice(None), [0, 3], -2, slice(4, 2, -1)):
            expected = 4 if index == slice(4, 2, -1) or index == slice(None) else 3
            with self.assertRaisesRegex(ValueError, f"a.npy: entry {expected} holds a token .* 14"):
                found[index]

    def test_one_in_place_of_another_is_read_anew(self):
        path = self.folder / "a.npy"
        for number in range(2):
            np.save(self.folder / "aside.npy", np.full(3, number))
            os.utime(self.folder / "aside.npy", ns=(number, number))
            (self.folder / "aside.npy").rename(path)
            np.testing.assert_array_equal(array_files.ArrayFile(path, (3,))[:], [number] * 3)


class ShardedRowsTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.whole = np.arange(10 * 4, dtype=np.uint16).reshape(10, 4)
        self.counts = [3, 0, 1, 6, 0]
        names = array_files.shard_names("en", "train", 5)
        self.assertEqual(names[1], "en.train-00001-of-00005.npy")
        self.paths = [self.folder / name for name in names]
        ends = np.cumsum(self.counts)
        for path, part in zip(self.paths, np.split(self.whole, ends[:-1]), strict=True):
            np.save(path, part)
        self.rows = ShardedRows(self.paths, self.counts, (4,), np.dtype(np.uint16))

    def test_it_reads_as_one_array(self):
        self.assertLen(self.rows, 10)
        self.assertEqual((self.rows.shape, self.rows.dtype), ((10, 4), np.uint16))
        np.testing.assert_array_equal(np.asarray(self.rows, np.int32), self.whole)
        for i in range(-10, 10):
            np.testing.assert_array_equal(self.rows[i], self.whole[i])
            self.assertEqual(self.rows[np.int64(i)].dtype, np.uint16)
        for start in (None, 0, 2, 3, 4, 9, 10, 12, -2):
            for stop in (None, 0, 3, 5, 10, 20, -1):
                for step in (None, 3, -1):
                    found = self.rows[start:stop:step]
                    np.testing.assert_array_equal(found, self.whole[start:stop:step])
                    self.assertEqual(found.dtype, np.uint16)

    def test_arrays_of_numbers(self):
        for numbers in ([], [9], [3, 2, 3, -1, 0], [[0, 4], [5, 9]]):
            index = np.array(numbers, np.int64)
            np.testing.assert_array_equal(self.rows[index], self.whole[index])
        mask = self.whole[:, 0] % 8 == 0
        np.testing.assert_array_equal(self.rows[mask], self.whole[mask])
        for wrong in (10, -11, np.array([0, 10])):
            with self.assertRaises(IndexError):
                self.rows[wrong]

    def test_ranges_are_read_by_one_read_of_each_file(self):
        for first in range(10):
            for stop in range(first + 1, 11):
                held = [any(first <= row < stop for row in rows) for rows in self.rows_of_files()]
                with mock.patch.object(os, "pread", side_effect=os.pread) as read:
                    found = self.rows[first:stop]
                np.testing.assert_array_equal(found, self.whole[first:stop])
                self.assertEqual(read.call_count, sum(held))

    def rows_of_files(self) -> list[range]:
        ends = np.cumsum(self.counts)
        return [range(end - count, end) for end, count in zip(ends, self.counts, strict=True)]

    def test_damage_is_seen_when_the_file_is_read(self):
        self.paths[3].write_bytes(self.paths[3].read_bytes()[:-2])
        np.testing.assert_array_equal(self.rows[0:3], self.whole[0:3])
        with self.assertRaisesRegex(ValueError, "en.train-00003-of-00005.npy: .* damaged"):
            self.rows[2:6]
        self.paths[3].unlink()
        with self.assertRaisesRegex(ValueError, "00003-of-00005.npy does not exist"):
            self.rows[9]

    def test_a_file_that_is_too_long(self):
        np.save(self.paths[0], self.whole[:3])
        with self.paths[0].open("ab") as file:
            file.write(b"\0\0")
        with self.assertRaisesRegex(ValueError, "154 bytes, must have 152; copy"):
            self.rows[0]
