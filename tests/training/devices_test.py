"""A batch over several devices: the same loss and gradients, with little communication."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from benchmarks.collectives import collectives_of
from knn_sampling.noise import cumulative_thresholds
from knn_sampling.samples import TokenStatistics
from tests import factories
from xlm.objectives.contrastive import SentenceContrast
from xlm.objectives.masked_lm import NEIGHBOURS, MaskedLM
from xlm.objectives.mixture import Mixture, Term
from xlm.objectives.objective import AuxState, Batch, means
from xlm.objectives.settings import ContrastSettings, MaskSettings
from xlm.training.accumulation import Accumulation
from xlm.training.settings import MeshSettings
from xlm.training.sharding import batch_sharding, make_mesh
from xlm.training.step import TrainFunctions

V, E, B, L = 4096, 16, 8, 8
CONTRAST = ContrastSettings(weight=1.0, temperature=0.1)
RULES = (("vocab", "model"), ("mlp", "model"), ("heads", "model"), ("embed", "fsdp"))


def tearDownModule():
    for function in (refreshed, functions_in_parts, compiled_in_parts, three_steps):
        function.cache_clear()  # otherwise their programs would stay loaded


@functools.cache
def mesh_of(axes: tuple, rules: tuple = RULES) -> tuple[MeshSettings, jax.sharding.Mesh]:
    # sharded_optimizer_test tests the other setting.
    settings = MeshSettings(*axes, vocab_multiple=8, rules=rules, shard_optimizer_over_data=False)
    return settings, make_mesh(settings, jax.devices()[: math.prod(axes)])


def masked_lm_on(
    axes: tuple, kind: str, *, dropout_rate: float = 0.1,
    num_layers: int = 0, rules: tuple = RULES, **layer,
) -> MaskedLM:  # fmt: skip
    """Return masked LM; by default without layers, since they are half of a program."""
    settings, mesh = mesh_of(axes, rules)
    layer = {"k": 4, "capacity": 64, "num_negatives": 16, "group_size": 2, **layer}
    layer_settings = factories.output_layer_settings(**layer, kind=kind, log_q_correction=True)
    encoder = factories.encoder_settings(
        vocab_size=V, embedding_size=E, hidden_size=E, mlp_size=E, max_length=L,
        num_layers=num_layers, norm_position="post", attention_dropout_rate=dropout_rate,
        dropout_rate=dropout_rate,
    )  # fmt: skip
    uniform = np.full(V, 1 / V)
    statistics = TokenStatistics(
        jnp.asarray(uniform, jnp.float32), cumulative_thresholds(uniform), jnp.zeros(V, int)
    )
    return factories.masked_lm(
        layer_settings, encoder, num_valid=V, mesh=mesh, mesh_settings=settings,
        mask=MaskSettings(0.2, 0.8, 0.1), across_documents=True, statistics=statistics,
    )  # fmt: skip


def functions_on(
    axes: tuple, kind: str, update: str, *, rules: tuple = RULES, **changes
) -> TrainFunctions:
    optimizer = factories.optimizer_settings(
        weight_decay=0.01, clip_norm=1.0, embedding_update=update
    )
    objective = masked_lm_on(axes, kind, rules=rules, **changes)
    return factories.train_functions(objective, optimizer, mesh_of(axes, rules)[0])


def step_text(axes: tuple, kind: str, update: str, **kwargs) -> str:
    """The compiled step without dropout, with the compiler's collectives."""
    functions = functions_on(axes, kind, update, dropout_rate=0.0, **kwargs)
    tokens = jax.ShapeDtypeStruct((B, L), jnp.int32, sharding=batch_sharding(functions.mesh))
    batch = Batch({"tokens": tokens}, "packed")
    step = functions.train_step.lower(functions.objective, functions.abstract_state, batch)
    return step.compile().as_text()


def sizes_in(text: str, kind: str = "") -> list[int]:
    return [n for one in collectives_of(text, 8) if kind in one.kind for n in one.sizes]


@functools.cache
def random_params(num_layers: int):
    """Parameters unlike initial values, which have too many zeros and ones."""
    functions = functions_on((1, 1, 1), "full", "dense", num_layers=num_layers)
    params, rng = functions.abstract_state.params, np.random.default_rng(0)
    return jax.tree.map(lambda x: (0.3 * rng.normal(size=x.shape)).astype(x.dtype), params)


@functools.cache
def refreshed() -> AuxState:
    """The auxiliary state of k-NN sampling by one device from `random_params`, of any depth."""
    functions = functions_on((1, 1, 1), "knn", "rows")
    state = factories.first_state(functions, random_params(0))
    return jax.device_get(functions.refresh(functions.objective.due(0), state)[0].aux_state)


def arrays_of(step: int) -> dict[str, np.ndarray]:
    """2 B pairs of two segments with 2 to L tokens, and one pair without tokens."""
    rng = np.random.default_rng(step)
    tokens = rng.integers(5, V, (2 * B, L)).astype(np.int32)
    is_text = np.arange(L) < rng.integers(2, L + 1, (2 * B, 1))
    is_text[step] = False
    segments = np.where(is_text, 1 + (np.arange(L) >= L // 2), 0).astype(np.int32)
    positions = np.tile(np.arange(L, dtype=np.int32), (2 * B, 1))
    tokens = np.where(is_text, tokens, factories.PAD).astype(np.int32)
    return {"tokens": tokens, "segments": segments, "positions": positions}


@functools.cache
def functions_in_parts(
    axes, kinds: tuple[str, ...], update: str, warmup_steps: int, changes: tuple
) -> TrainFunctions:
    """Functions of steps with two microbatches, without dropout."""
    of = {
        name: masked_lm_on(axes, kind, dropout_rate=0.0, **dict(changes))
        for name, kind in (("pairs", kinds[0]), ("separate_pairs", kinds[-1]))
    }
    contrast = SentenceContrast(of["separate_pairs"], CONTRAST)
    mixture = Mixture({"pairs": Term(of["pairs"], "tlm"), "separate_pairs": Term(contrast, "both")})
    return factories.train_functions(
        mixture if len(kinds) > 1 else of["pairs"],
        factories.optimizer_settings(
            epsilon=0.1, weight_decay=0.1, clip_norm=0.05, embedding_update=update
        ),
        mesh_of(axes, dict(changes).get("rules", RULES))[0],
        accumulation=Accumulation(2, warmup_steps),
    )


@functools.cache
def compiled_in_parts(axes, kind_of_batch: str, *args):
    functions = functions_in_parts(axes, *args)
    arrays = jax.device_put(arrays_of(0), batch_sharding(functions.mesh))
    batch = Batch(arrays, kind_of_batch)
    step = functions.train_step.lower(functions.objective, functions.abstract_state, batch)
    return step.compile()


@functools.cache
def three_steps(axes, kinds: tuple[str, ...], update: str, warmup_steps: int, changes: tuple):
    args = update, warmup_steps, changes
    functions, metrics = functions_in_parts(axes, kinds, *args), []
    params = random_params(dict(changes).get("num_layers", 0))
    aux_state = refreshed() if "knn" in kinds else {}
    state = factories.first_state(functions, params, aux_state)
    for step in range(3):
        arrays = jax.device_put(arrays_of(step), batch_sharding(functions.mesh))
        kind = ("pairs", "separate_pairs")[step % len(kinds)]
        take_step = compiled_in_parts(axes, kind, kinds, *args)
        state, found = take_step(state, Batch(arrays, kind))
        metrics.append(means(jax.device_get(found)))
    if update == "rows":
        state = functions.apply_pending_updates(state)
    return jax.device_get(state.params), metrics


def text_in_parts(axes, kinds, update, warmup_steps, changes) -> str:
    args = kinds, update, warmup_steps, tuple(changes.items())
    return compiled_in_parts(axes, "pairs", *args).as_text()


IN_PARTS = {
    "knn_by_rows": ((4, 1, 2), ("knn",), "rows", 2, {"capacity": 512}),  # groups within shards
    "knn_of_one_group": ((4, 2, 1), ("knn",), "dense", 0, {"capacity": 2100, "group_size": 0}),
    "full": ((4, 1, 2), ("full",), "dense", 2, {"num_layers": 1}),
    "two_other_axes": ((2, 2, 2), ("knn",), "dense", 0, {"capacity": 512, "num_layers": 1}),
    "full_by_rows": ((4, 2, 1), ("full",), "rows", 0, {}),
    "few_rows": ((4, 1, 2), ("knn",), "dense", 0, {"capacity": 64, "group_size": 1}),
    "data_alone": ((4, 1, 1), ("knn",), "dense", 0, {"capacity": 256, "group_size": 1}),
}


class AccumulatedTest(parameterized.TestCase):
    @parameterized.parameters(
        IN_PARTS["knn_by_rows"],
        IN_PARTS["knn_of_one_group"],
        ((8, 1, 1), ("knn",), "dense", 0, {"capacity": 1024, "group_size": 4}),  # across shards
        IN_PARTS["two_other_axes"],
        IN_PARTS["full"],
        IN_PARTS["full_by_rows"],
        ((4, 1, 2), ("blockwise",), "dense", 0, {"rules": (("vocab", ("data", "fsdp", "model")),)}),
        # rows over devices that also split the batch
        ((2, 4, 1), ("knn",), "rows", 0, {"rules": (("vocab", "fsdp"),)}),
        ((2, 2, 2), ("knn",), "rows", 0, {"rules": (("vocab", ("fsdp", "model")), RULES[-1])}),
        ((4, 1, 2), ("full", "full"), "dense", 0, {}),  # every other step has a whole batch
    )
    def test_parts_are_those_of_one_device(self, axes, kinds, update, warmup_steps, changes):
        rest = kinds, update, warmup_steps
        params, metrics = three_steps(axes, *rest, tuple(changes.items()))
        # Rules do not matter on one device.
        of_model = {name: value for name, value in changes.items() if name != "rules"}
        expected, expected_metrics = three_steps((1, 1, 1), *rest, tuple(of_model.items()))
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
        jax.tree.map(check, params, expected)
        first = random_params(changes.get("num_layers", 0))
        table, first = (one["embeddings"]["table"] for one in (params, first))
        self.assertGreater(np.abs(table - first).max(), 0.01)
        for one, other in zip(metrics, expected_metrics, strict=True):
            self.assertEqual(one.keys(), other.keys())
            for name in one:
                check(one[name], other[name], err_msg=name)

    def test_no_device_gathers_a_table_whose_columns_are_split(self):
        functions = functions_on((1, 8, 1), "knn", "rows")
        names = functions.objective.due(0)
        refresh = functions.refresh.lower(names, functions.abstract_state).compile()
        found = collectives_of(refresh.as_text(), 8)
        # Columns of all rows become all columns of a share of the rows. Then queries rotate.
        once = [one for one in found if one.kind == "all-to-all" and not one.in_loop]
        self.assertEqual([sum(one.sizes) for one in once], [V * E // 8])
        self.assertLess(max(max(one.sizes) for one in found), V * E)
        state, _ = refresh(factories.first_state(functions, random_params(0)))
        expected = refreshed()[NEIGHBOURS]
        np.testing.assert_array_equal(state.aux_state[NEIGHBOURS], expected)
        self.assertTrue((np.diff(expected) != 0).any())


class CollectivesTest(parameterized.TestCase):
    @parameterized.parameters(((4, 1, 2), "knn"), ((2, 1, 4), "nce"))
    def test_a_sampled_step_sends_nothing_of_the_table_size(self, axes, kind):
        sizes = sizes_in(step_text(axes, kind, "rows"))
        self.assertNotEmpty(sizes)
        self.assertLess(max(sizes), V * E / 2)

    @parameterized.parameters((0, 64 * 4 + B * L), (128, 128))
    def test_gradients_of_the_table_are_summed_by_rows(self, row_capacity, num_rows):
        """Over the data axis, for gradients of both output and embeddings."""
        text = step_text((8, 1, 1), "knn", "rows", row_capacity=row_capacity)
        sizes = set(sizes_in(text, "all-reduce")) - {V}  # the bias
        self.assertEqual(max(sizes), num_rows * E)

    def test_the_dense_update_and_the_exact_softmax_do(self):
        # Otherwise the test above might not recognise such a collective.
        sizes = sizes_in(step_text((4, 1, 2), "full", "dense"))
        self.assertGreaterEqual(max(sizes), V * E / 2)

    @parameterized.parameters("full", "blockwise")
    def test_the_gradient_of_the_table_is_sent_once(self, kind):
        """The gradient of the output; embeddings send gradients of the batch's tokens."""
        found = collectives_of(step_text((8, 1, 1), kind, "dense"), 8)
        sent = sum(one.times * sum(one.sizes) for one in found if one.kind == "all-reduce")
        self.assertBetween(sent, V * E, 1.1 * V * E)

    @parameterized.parameters(
        "data_alone", "knn_by_rows", "knn_of_one_group", "full", "full_by_rows"
    )
    def test_gradients_of_parts_are_summed_over_data_once(self, case):
        repeated, once = self.most_over_data(case)
        self.assertLess(repeated, 512 * E)  # a quarter of the rows' gradients; ids are fewer
        self.assertGreaterEqual(once, V * E / 2)

    @parameterized.parameters("few_rows", "two_other_axes")
    def test_or_in_each_part(self, case):
        """Gradients of few rows, since these are fewer numbers, and with two other split axes."""
        repeated, once = self.most_over_data(case)
        self.assertGreaterEqual(repeated, (4 * IN_PARTS[case][-1]["capacity"] + 4 * L) * E / 4)
        self.assertLess(once, E * E)

    @parameterized.parameters("full", "full_by_rows")
    def test_slices_exchange_the_sum_of_gradients_once(self, case):
        """Between devices 0-3 and 4-7, the slices of `mesh.slices = 2`."""
        axes, kinds, update, warmup_steps, changes = IN_PARTS[case]
        self.assertEqual(list(mesh_of(axes)[1].devices.flat), jax.devices())  # data outermost
        found = collectives_of(text_in_parts(*IN_PARTS[case]), 8)
        crossing = [one for one in found if one.is_over(stride=4, size=2)]
        summed = [one for one in crossing if one.kind == "all-reduce"]
        rest = [one for one in crossing if one.kind != "all-reduce"]
        functions = functions_in_parts(axes, kinds, update, warmup_steps, tuple(changes.items()))
        params = jax.tree.leaves(functions.abstract_state.params)
        held = sum(math.prod(x.sharding.shard_shape(x.shape)) for x in params)
        self.assertEqual({(one.in_loop, one.times) for one in summed}, {(False, 1)})
        self.assertBetween(sum(sum(one.sizes) for one in summed), held, held + 16)  # and scalars
        # Token ids of the batch, which microbatches distribute.
        self.assertLessEqual(sum(one.bytes for one in rest), 4 * 2 * B * L)

    def most_over_data(self, case: str) -> tuple[int, int]:
        """Return the most elements of an array sent along `data`, inside and outside loops."""
        size, *others = axes = IN_PARTS[case][0]
        over_data = [
            one for one in collectives_of(text_in_parts(*IN_PARTS[case]), math.prod(axes))
            if one.is_over(math.prod(others), size)
        ]  # fmt: skip
        inside = max(max(one.sizes) for one in over_data if one.in_loop)
        return inside, max((max(one.sizes) for one in over_data if not one.in_loop), default=0)
