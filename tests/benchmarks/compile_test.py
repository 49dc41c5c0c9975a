"""Costs of programs with known costs, their communication, and budgets of compiled steps."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import hlo
from benchmarks.collectives import collectives_of
from tests import commands
from xlm.experiment import memory

bench = commands.load("benchmarks.compile")
CHIP = bench.Chip(1e9, 1e9, 1e9, 1e3, {})
SIZES = (
    "model.embedding_size=16", "model.hidden_size=16", "model.mlp_size=32", "model.num_heads=2",
    "model.dtype=float32", "vocab.target_size=4096",
)  # fmt: skip
SHORT = (
    *SIZES, "store.length=16", "model.max_length=16", "model.num_layers=2", "train.batch_size=16",
    "output_layer.group_size=2",
)  # fmt: skip
IDS = "output_layer.capacity=128"
# A loop slices and updates a stack of twelve rows. A row has 256 bytes, an index 4.
TEXT = """HloModule step

FileNames
1 "/any/xlm/models/attention.py"
2 "/any/xlm/training/sharding.py"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=2}
2 {file_name_id=2 function_name_id=1 line=9 end_line=9 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

%sliced (p: f32[12,64], q: s32[]) -> f32[1,64] {
  %p = f32[12,64]{1,0} parameter(0)
  %q = s32[] parameter(1)
  %half = bf16[12,64]{1,0} convert(%p)
  %part = bf16[1,64]{1,0} dynamic-slice(%half, %q, %q), dynamic_slice_sizes={1,64}
  ROOT %up = f32[1,64]{1,0} convert(%part)
}

%stored (s: f32[12,64], r: f32[1,64], i: s32[]) -> f32[12,64] {
  %s = f32[12,64]{1,0} parameter(0)
  %r = f32[1,64]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %put = f32[12,64]{1,0} dynamic-update-slice(%s, %r, %i, %i)
}

%body (state: (s32[], f32[12,64])) -> (s32[], f32[12,64]) {
  %row = f32[1,64]{1,0} fusion(%stack, %number), kind=kLoop, calls=%sliced, \
metadata={op_name="a/b" stack_frame_id=2}
  %stack = f32[12,64]{1,0} get-tuple-element(%state), index=1
  %number = s32[] get-tuple-element(%state), index=0
  %next = f32[12,64]{1,0} fusion(%stack, %row, %number), kind=kLoop, calls=%stored
  ROOT %all = (s32[], f32[12,64]{1,0}) tuple(%number, %next)
}

%end (state: (s32[], f32[12,64])) -> pred[] {
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[64]) -> f32[64] {
  %x = f32[64]{0:T(8,128)} parameter(0)
  %start = f32[64]{0} all-reduce-start(%x), replica_groups={{0,1}}, to_apply=%add
  %near = f32[64]{0:T(8,128)S(1)} copy(%x)
  %done = f32[64]{0} all-reduce-done(%start)
  %loop = (s32[], f32[12,64]{1,0}) while(%begin), condition=%end, body=%body TRIPS
  ROOT %sum = f32[64]{0} all-reduce(%done), replica_groups={{0,1}}, to_apply=%add
}
"""
KNOWN = 'backend_config={"known_trip_count":{"n":"7"}}'


def account(function, *shapes) -> tuple[float, float, float]:
    """Bytes, FLOPs and sent bytes of a compiled function of float32 arrays."""
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=s) for shape, s in shapes]
    text = jax.jit(function).lower(*arrays).compile().as_text()
    found = [x for x in hlo.Program(text, 8).operations() if x.flops or x.sent]
    return tuple(sum(getattr(x, k) * x.times for x in found) for k in ("bytes", "flops", "sent"))


@functools.cache
def step(preset: str, keys: tuple[str, ...], num_devices: int = 8):
    config = bench.config_of(preset, num_devices, keys)
    devices = bench.devices_of(f"cpu:{num_devices}")
    ((_, facts, text),) = bench.compiled(config, devices)
    return config, facts, text


def tearDownModule():
    step.cache_clear()


class AccountTest(parameterized.TestCase):
    def test_products_collectives_and_loops(self):
        one = ((64, 32), None), ((32, 16), None)
        of_one = 4 * (64 * 32 + 32 * 16 + 64 * 16), 2 * 64 * 32 * 16, 0
        self.assertEqual(account(jnp.dot, *one), of_one)
        loop = account(lambda x, w: jax.lax.scan(lambda x, w: (x @ w, None), x, w)[0],
                       ((8, 64), None), ((12, 64, 64), None))  # fmt: skip
        self.assertEqual(loop, (12 * 4 * (2 * 8 * 64 + 64 * 64), 12 * 2 * 8 * 64 * 64, 0))
        mesh = NamedSharding(jax.make_mesh((8,), ("data",)), P("data"))
        sums = account(lambda x: x.sum(0), ((8, 1024), mesh))
        self.assertEqual(sums, (2 * 4096, 0, 2 * 4096 * 7 / 8))

    @parameterized.parameters((KNOWN, 7, []), ("", 12, [12]))
    def test_slices_loops_and_overlap(self, trips: str, times: int, open_loops: list[int]):
        text = TEXT.replace("TRIPS", trips)
        found = {x.name: (x.bytes, x.times, x.where) for x in hlo.Program(text, 2).operations()}
        self.assertEqual(found["row"], (256 + 256 + 4, times, "xlm/models/attention.py:7"))
        self.assertEqual(found["next"], (256 + 256 + 4, times, ""))
        self.assertEqual(found["near"], (256, 1, ""))  # its result is in vector memory
        record = bench.record_of({}, text, CHIP, 2)
        self.assertEqual(record["sent"], {"all-reduce": [2, 512, 256]})
        self.assertEqual(record["open_loops"], open_loops)
        # For the first only a launch, longer than a copy of 256 bytes, is hidden.
        sending = 2 * 256 / (bench.LINKS * 1e3) - bench.LAUNCH
        self.assertAlmostEqual(record["exposed_ms"], 1e3 * sending, places=6)
        launches = 1 + 3 * times  # the condition's is one
        self.assertAlmostEqual(record["ms"], 1e3 * (sending + launches * bench.LAUNCH), places=6)
        changed = {**record, "flops": 1.0, "ms": 1.001 * record["ms"]}
        self.assertEqual(bench.changes(record, changed), ["flops: 0 -> 1"])

    def test_kernels_say_what_they_multiply(self):
        kernel = (
            r'custom-call(%x), backend_config={serialized_metadata = "{\22flops\22: \22320\22}"}'
        )
        text = TEXT.replace("TRIPS", KNOWN).replace("copy(%x)", kernel)
        found = {x.name: x.flops for x in hlo.Program(text, 2).operations()}
        self.assertEqual((found["near"], sum(found.values())), (320, 320))

    def test_memory_and_a_step_that_does_not_fit(self):
        config, facts, _ = step("vocap_500k_full", SHORT)
        sizes = memory.estimate(config, 8).bytes()
        state = sum(sizes[part] for part in ("parameters", "optimizer", "auxiliary state"))
        # Also tokens and languages of two sequences, the step and the random key.
        self.assertBetween(facts["arguments"] - state, 2 * 17 * 4, 2 * 17 * 4 + 64)
        message = "RESOURCE_EXHAUSTED: Ran out of memory. Used 12.50G of 1.00G hbm. Exceeded"
        with mock.patch.object(
            jax.stages.Lowered, "compile", side_effect=jax.errors.JaxRuntimeError(message)
        ):
            ((_, facts, text),) = bench.compiled(config, jax.devices())
        self.assertEqual((facts["peak"], text), (12.5 * 2**30, ""))


class BudgetTest(absltest.TestCase):
    def test_packed_documents_have_no_array_of_all_pairs(self):
        keys = ("model.num_layers=4", "train.batch_size=1", "train.accumulation_steps=1")
        _, _, text = step("mmbert_base_8192", (*SIZES, *keys), 1)
        size, shape = hlo.Program(text, 1).largest_array()
        self.assertLess(size, 8192 * 8192, shape)

    def test_the_gradient_is_sent_once(self):
        few = "output_layer.row_capacity=512", IDS
        # The CPU compiler makes no reduce-scatter.
        whole = "mesh.shard_optimizer_over_data=False"
        for preset, keys, share in (("full", (), 1.0), ("knn", few, 512 / 4096)):
            config, _, text = step(f"vocap_500k_{preset}", (*SHORT, *keys, whole))
            table = 4 * 4096 * 16
            parameters = memory.estimate(config, 8).state["gradients"]
            # Gradients of 256 tokens' embeddings rotate, and are added where their rows are.
            expected = 2 * 7 / 8 * (parameters - table + share * table) + 7 / 8 * 4 * 256 * 16
            sent = sum(x.sent * x.times for x in hlo.Program(text, 8).operations())
            # also ids of candidates and masked positions
            self.assertBetween(sent, expected, 1.1 * expected, preset)


# `\` joins lines, since a program's text has no breaks.
SENDING = """HloModule step

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
        found = collectives_of(SENDING, 4)
        of = {one.kind: one for one in found if one.times}
        counts = {kind: (one.bytes, one.times, one.sent_bytes()) for kind, one in of.items()}
        gathers = [one for one in found if one.kind == "all-gather"]
        self.assertEqual(counts["all-reduce"], (4 * 12, 1, 2 * 48 * 3 / 4))
        self.assertEqual(counts["collective-permute"], (32, 1, 32))
        self.assertEqual(counts["reduce-scatter"], (40, 36, 36 * 40 * 3))
        # The operand of an asynchronous collective does not count.
        layer = next(one for one in gathers if one.in_loop)
        self.assertEqual((layer.bytes, layer.times, layer.sent_bytes()), (64, 12, 12 * 32))
        self.assertEqual(layer.groups, [[0, 2], [1, 3]])
        # the branch that sends more: 128 bytes against 48
        branch = next(one for one in gathers if not one.in_loop)
        self.assertEqual((branch.bytes, branch.times), (256, 1))
        never = next(one for one in found if one.sizes == [8] and one.kind == "all-reduce")
        self.assertEqual(never.times, 0)
        begun = next(one for one in found if one.kind == "reduce-scatter" and not one.times)
        self.assertEqual(begun.sizes, [1])
        with self.assertRaisesRegex(ValueError, "no program, it has no entry: 'nothing'"):
            collectives_of("nothing", 4)
