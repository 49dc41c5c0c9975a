"""Collectives of a program by their text: bytes, executions, groups."""

from absl.testing import absltest

from benchmarks.collectives import collectives_of

# `\` joins lines, which a program's text does not break.
TEXT = """HloModule step

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%one (x: f32[8]) -> f32[8] {
  %begun = ((f32[4]{0}), f32[1]{0}) reduce-scatter-start(%x), replica_groups={{0,1,2,3}}
  ROOT %small = f32[8]{0} all-reduce(%x), replica_groups=[1,4]<=[4], to_apply=%add
}

%other (x: f32[8]) -> f32[8] {
  ROOT %large = f32[64]{0} all-gather(%x), replica_groups={{0,1},{2,3}}, dimensions={0}
}

%layer (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %start = (bf16[16]{0}, bf16[32]{0}) all-gather-start(%x), replica_groups=[2,2]<=[2,2]T(1,0)
  %done = bf16[32]{0} all-gather-done(%start)
  %inner = (s32[], f32[8]) while(%init), condition=%three, body=%part
}

%part (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %scattered = f32[10]{0} reduce-scatter(%x), replica_groups={{0,1,2,3}}, to_apply=%add
}

%three (state: (s32[], f32[8])) -> pred[] {
  %end = s32[]{:T(128)} constant(3)
  ROOT %below = pred[]{:T(512)} compare(%i, %end), direction=LT, metadata={}
}

%more (state: (s32[], f32[8])) -> pred[] {
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %sums = (f32[8]{0}, f32[2,2]{1,0}) all-reduce(%x, %y), replica_groups={}, to_apply=%add
  %chosen = f32[8] conditional(%which, %x, %x), branch_computations={%one, %other}
  %moved = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%x), \
source_target_pairs={{0,1},{1,0}}
  ROOT %loop = (s32[], f32[8]) while(%init), condition=%more, body=%layer, \
backend_config={"known_trip_count":{"n":"12"}}
}
"""


class CollectivesTest(absltest.TestCase):
    def test_what_a_device_sends(self):
        found = collectives_of(TEXT, 4)
        of = {one.kind: one for one in found if one.times}
        counts = {kind: (one.bytes, one.times, one.sent_bytes()) for kind, one in of.items()}
        gathers = [one for one in found if one.kind == "all-gather"]
        self.assertEqual(counts["all-reduce"], (4 * 12, 1, 2 * 48 * 3 / 4))
        self.assertEqual(counts["collective-permute"], (32, 1, 32))
        self.assertEqual(counts["reduce-scatter"], (40, 36, 36 * 40 * 3))
        # The operand of an asynchronous one is not counted.
        layer = next(one for one in gathers if one.in_loop)
        self.assertEqual((layer.bytes, layer.times, layer.sent_bytes()), (64, 12, 12 * 32))
        self.assertEqual(layer.groups, [[0, 2], [1, 3]])
        # Of the branches the one that sends more: 128 bytes against 48.
        branch = next(one for one in gathers if not one.in_loop)
        self.assertEqual((branch.bytes, branch.times), (256, 1))
        never = next(one for one in found if one.sizes == [8] and one.kind == "all-reduce")
        self.assertEqual(never.times, 0)
        begun = next(one for one in found if one.kind == "reduce-scatter" and not one.times)
        self.assertEqual(begun.sizes, [1])
        with self.assertRaisesRegex(ValueError, "no program, it has no entry: 'nothing'"):
            collectives_of("nothing", 4)
