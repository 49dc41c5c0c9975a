"""Records of phases: what is in force when, and exactly what was written is read."""

import numpy as np

from input_pipeline.pair_phases import (
    PairRecord,
    Phase,
    load_pair_record,
    read_pair_record,
    write_pair_record,
)
from tests.folders import FolderTest

NAMES = ("news de-en", "news en-sw", "de-sw de-sw")


def record(*steps: int, seed: int = 0) -> PairRecord:
    """A record with phases at `steps`, of which the losses of one pair are unknown."""
    rng = np.random.default_rng(seed)

    def distribution() -> dict[str, float]:
        return dict(zip(NAMES, rng.dirichlet(np.ones(len(NAMES))).tolist(), strict=True))

    base = distribution()
    phases = []
    for step in steps:
        losses = dict(zip(NAMES, [*rng.normal(size=2).tolist(), None], strict=True))
        phases.append(Phase(step, distribution(), losses, float(rng.uniform()), None))
    return PairRecord(base, tuple(phases))


class PairRecordTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "train" / "pair_weights.json"

    def test_record_as_of_a_step_tells_what_was_in_force_until_then(self):
        whole = record(10, 20, 30)
        for step, count in ((0, 0), (9, 0), (10, 1), (11, 1), (20, 2), (29, 2), (30, 3), (99, 3)):
            cut = whole.as_of(step)
            self.assertEqual((cut.base, cut.phases), (whole.base, whole.phases[:count]))
            # Solving the dropped phases again restores the record.
            for phase in whole.phases[count:]:
                cut = cut.extended(phase)
            self.assertEqual(cut, whole)

    def test_what_is_read_is_what_was_written(self):
        for seed in range(20):
            one = record(10, 20, seed=seed)
            write_pair_record(self.path, one)
            self.assertEqual(load_pair_record(self.path), one)
            self.assertEqual(read_pair_record(self.path, one.base), one)
        self.assertLen(list(self.path.parent.iterdir()), 1)

    def test_without_a_file_there_are_no_phases(self):
        base = record().base
        self.assertEqual(read_pair_record(self.path, base), PairRecord(base))
        with self.assertRaisesRegex(ValueError, "pair_weights.json does not exist"):
            load_pair_record(self.path)

    def test_the_last_bits_of_another_processor_are_accepted(self):
        one = record(10)
        write_pair_record(self.path, one)
        other = {name: float(np.nextafter(share, 1.0)) for name, share in one.base.items()}
        self.assertNotEqual(other, one.base)
        self.assertEqual(read_pair_record(self.path, other), one)

    def test_other_pairs_or_weights_are_refused(self):
        one = record(10)
        write_pair_record(self.path, one)
        other = dict(one.base)
        other[NAMES[0]] += 1e-9
        with self.assertRaisesRegex(ValueError, "1 differ, such as 'news de-en'"):
            read_pair_record(self.path, other)
        with self.assertRaisesRegex(ValueError, "another distribution over pairs"):
            read_pair_record(self.path, {"x": 1.0})

    def test_damaged_file(self):
        write_pair_record(self.path, record(10))
        text = self.path.read_text()
        for damaged in (text[:-20], "{}", text.replace('"step": 10', '"stop": 10'), "[]"):
            self.path.write_text(damaged)
            with self.assertRaisesRegex(
                ValueError, r"pair_weights.json: .*restore the record of pair.*--workdir"
            ):
                load_pair_record(self.path)

    def test_what_is_no_record_is_neither_made_nor_written(self):
        one = record(10)
        phase = one.phases[0]
        with self.assertRaisesRegex(ValueError, r"\[10, 10\], must ascend"):
            one.extended(phase)
        for weights, message in (
            (dict.fromkeys(NAMES, 0.5), "weights sum to 1.5"),
            (dict(zip(NAMES, (1.5, -0.5, 0.0), strict=True)), "must be at least 0"),
            (dict(zip(NAMES, (float("nan"), 0.5, 0.5), strict=True)), "weights sum to nan"),
            ({"x": 1.0}, "other pairs than the base distribution"),
        ):
            with self.assertRaisesRegex(ValueError, f"step 11.*{message}"):
                one.extended(Phase(11, weights, phase.losses, 0.0, None))
        with self.assertRaisesRegex(ValueError, "losses of other pairs"):
            one.extended(Phase(11, phase.weights, {}, 0.0, None))
        endless = one.extended(Phase(11, phase.weights, phase.losses, 0.0, float("-inf")))
        with self.assertRaisesRegex(ValueError, "pair_weights.json cannot be written as JSON"):
            write_pair_record(self.path, endless)
        self.assertFalse(self.path.exists())
