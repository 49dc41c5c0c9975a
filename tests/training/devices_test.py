"""A batch over several devices: the same loss and gradients, and little that they send."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from benchmarks.collectives import collectives_of
from knn_sampling.noise import cumulative_thresholds
from knn_sampling.output_layer import TokenStatistics
from tests import factories
from xlm.objectives.contrastive import SentenceContrast
from xlm.objectives.masked_lm import NEIGHBOURS, MaskedLM, TranslationLM
from xlm.objectives.mixture import Mixture, Term
from xlm.objectives.objective import Batch, Extra, gathered_rows, means
from xlm.objectives.settings import ContrastSettings, MaskSettings
from xlm.training.accumulation import Accumulation
from xlm.training.settings import MeshSettings
from xlm.training.sharding import batch_sharding, make_mesh, traced_on
from xlm.training.step import TrainFunctions

V, E, B, L = 4096, 16, 8, 8
CONTRAST = ContrastSettings(weight=1.0, temperature=0.1)
RULES = (("vocab", "model"), ("mlp", "model"), ("heads", "model"), ("embed", "fsdp"))


def tearDownModule():
    for function in (
        loss_and_gradients, refreshed, functions_in_parts, compiled_in_parts, three_steps,
    ):  # fmt: skip
        function.cache_clear()  # or their programs would stay loaded


@functools.cache
def mesh_of(
    axes: tuple[int, int, int], rules: tuple = RULES
) -> tuple[MeshSettings, jax.sharding.Mesh]:
    settings = MeshSettings(*axes, vocab_multiple=8, rules=rules)
    return settings, make_mesh(settings, jax.devices()[: math.prod(axes)])


def masked_lm_on(
    axes: tuple[int, int, int],
    kind: str,
    of: type[MaskedLM] = MaskedLM,
    dropout_rate: float = 0.1,
    num_layers: int = 0,
    rules: tuple = RULES,
    **layer,
) -> MaskedLM:
    """Without layers unless what they send is tested, as half of a program is theirs."""
    settings, mesh = mesh_of(axes, rules)
    defaults = {"k": 4, "capacity": 64, "num_negatives": 16, "group_size": 2}
    layer_settings = factories.output_layer_settings(
        **{**defaults, **layer}, kind=kind, log_q_correction=True
    )
    encoder = factories.encoder_settings(
        vocab_size=V, embedding_size=E, hidden_size=E, mlp_size=E, max_length=L,
        num_layers=num_layers, norm_position="post", attention_dropout_rate=dropout_rate,
        dropout_rate=dropout_rate,
    )  # fmt: skip
    uniform = np.full(V, 1 / V)
    return factories.masked_lm(
        layer_settings,
        encoder,
        kind=of,
        num_valid=V,
        mesh=mesh,
        mesh_settings=settings,
        mask=MaskSettings(0.2, 0.8, 0.1),
        across_documents=True,
        statistics=TokenStatistics(
            jnp.asarray(uniform, jnp.float32), cumulative_thresholds(uniform), jnp.zeros(V, int)
        ),
    )


def functions_on(
    axes: tuple[int, int, int],
    kind: str,
    update: str,
    num_parts: int = 1,
    rules: tuple = RULES,
    **changes,
) -> TrainFunctions:
    optimizer = factories.optimizer_settings(
        weight_decay=0.01, clip_norm=1.0, embedding_update=update
    )
    return factories.train_functions(
        masked_lm_on(axes, kind, rules=rules, **changes),
        optimizer,
        mesh_of(axes, rules)[0],
        accumulation=Accumulation(num_parts, 0),
    )


def step_text(axes: tuple[int, int, int], kind: str, update: str, *args, **kwargs) -> str:
    """The compiled step without dropout, after the compiler has put the collectives in."""
    functions = functions_on(axes, kind, update, *args, dropout_rate=0.0, **kwargs)
    tokens = jax.ShapeDtypeStruct((B, L), jnp.int32, sharding=batch_sharding(functions.mesh))
    batch = Batch({"tokens": tokens}, "packed")
    step = functions.train_step.lower(functions.objective, functions.abstract_state, batch)
    return step.compile().as_text()


def collectives(text: str, kinds: str) -> list[str]:
    """The shapes that each collective makes."""
    return re.findall(rf"= (.*?) (?:{kinds})(?:-start)?\(", text)


def collective_sizes(text: str) -> list[int]:
    """Elements of every array that a collective makes."""
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    return [
        math.prod(int(size) for size in shape.split(",") if size)
        for shapes in collectives(text, kinds)
        for shape in re.findall(r"\w+\[([\d,]*)\]", shapes)
    ]


@functools.cache
def abstract_params(axes: tuple[int, int, int], num_layers: int, rules: tuple = RULES):
    """Shapes and layout of the parameters, which are those of every kind of output layer."""
    functions = functions_on(axes, "full", "dense", num_layers=num_layers, rules=rules)
    return functions.abstract_state.params


@functools.cache
def random_params(num_layers: int):
    """Parameters away from their initial values, among which are too many zeros and ones."""
    params, rng = abstract_params((1, 1, 1), num_layers), np.random.default_rng(0)
    return jax.tree.map(lambda x: (0.3 * rng.normal(size=x.shape)).astype(x.dtype), params)


@functools.cache
def refreshed() -> Extra:
    """The extra state of k-NN sampling from `random_params`, whose table is the same of any depth.

    By one device.
    """
    functions = functions_on((1, 1, 1), "knn", "rows")
    state = factories.first_state(functions, random_params(0))
    return jax.device_get(functions.refresh(functions.objective.due(0), state)[0].extra)


@functools.cache
def loss_and_gradients(
    axes: tuple[int, int, int],
    kind: str,
    num_layers: int = 0,
    is_contrast: bool = False,
    rules: tuple = RULES,
):
    """Of one batch by table rows, dropout on, everything laid out over the devices."""
    _, mesh = mesh_of(axes, rules)
    layout = abstract_params(axes, num_layers, rules)
    params = jax.tree.map(
        lambda x, s: jax.device_put(x, s.sharding), random_params(num_layers), layout
    )
    tokens = np.random.default_rng(1).integers(5, V, (B, L)).astype(np.int32)
    arrays = {"tokens": tokens}
    objective = masked_lm_on(axes, kind, num_layers=num_layers, rules=rules)
    if is_contrast:  # two sentences a sequence
        tokens[:, [0, L // 2]] = 0
        segments = np.repeat([[1, 2]], L // 2, axis=1).repeat(B, axis=0).astype(np.int32)
        positions = np.tile(np.arange(L // 2, dtype=np.int32), (B, 2))
        arrays |= {"segments": segments, "positions": positions}
        objective = SentenceContrast(masked_lm_on(axes, kind, TranslationLM), CONTRAST)
    batch = Batch(jax.device_put(arrays, batch_sharding(mesh)), "any")

    @jax.jit
    def run(params, batch):
        extra, step, key = objective.init_extra(), jnp.int32(0), jax.random.key(7)
        if names := objective.due(0):
            extra, _ = objective.refresh(params, extra, names, step)
        plan, touched = objective.plan(extra, batch, key, step)

        def loss(params):
            rows = gathered_rows(params, touched)
            total, weight = objective.loss(params, rows, plan, key)[0]["loss"]
            return total / weight

        return jax.value_and_grad(loss)(params)

    loss, gradients = traced_on(mesh, run)(params, batch)
    return float(loss), jax.device_get(gradients)


class SameLossTest(parameterized.TestCase):
    @parameterized.parameters((8, 1, 1), (2, 2, 2))
    def test_knn(self, *axes):
        self.assert_same(axes, "knn", num_layers=1)

    @parameterized.parameters(
        ((2, 4, 1), (("vocab", "fsdp"),)),
        ((2, 2, 2), (("vocab", ("fsdp", "model")), ("embed", "fsdp"))),
    )
    def test_rows_over_devices_that_split_the_batch(self, axes, rules):
        self.assert_same(axes, "knn", rules, num_layers=1)

    def test_sentences_are_contrasted_over_all_devices(self):
        axes = (2, 2, 2)
        self.assert_same(axes, "full", is_contrast=True)
        alone, _ = loss_and_gradients((1, 1, 1), "full")
        self.assertGreater(loss_and_gradients(axes, "full", is_contrast=True)[0], alone + 1)

    def assert_same(self, axes: tuple[int, int, int], kind: str, rules: tuple = RULES, **kwargs):
        expected, one_device = loss_and_gradients((1, 1, 1), kind, **kwargs)
        loss, gradients = loss_and_gradients(axes, kind, rules=rules, **kwargs)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        largest = max(np.abs(x).max() for x in jax.tree.leaves(one_device))
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5 * largest)
        jax.tree.map(check, gradients, one_device)


def arrays_of(step: int) -> dict[str, np.ndarray]:
    """2 B pairs of two segments, of 2 to L tokens and one without any."""
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
    """Of steps in two parts without dropout."""
    of = {
        name: masked_lm_on(axes, kind, TranslationLM, dropout_rate=0.0, **dict(changes))
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
    """A step on one kind of batch."""
    functions = functions_in_parts(axes, *args)
    arrays = jax.device_put(arrays_of(0), batch_sharding(functions.mesh))
    batch = Batch(arrays, kind_of_batch)
    step = functions.train_step.lower(functions.objective, functions.abstract_state, batch)
    return step.compile()


@functools.cache
def three_steps(axes, kinds: tuple[str, ...], update: str, warmup_steps: int, changes: tuple):
    """Parameters after three steps, and the metrics of each step."""
    args = update, warmup_steps, changes
    functions, metrics = functions_in_parts(axes, kinds, *args), []
    params = random_params(dict(changes).get("num_layers", 0))
    extra = refreshed() if "knn" in kinds else {}
    state = factories.first_state(functions, params, extra)
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


# Of AccumulatedTest, whose collectives are looked at as well.
IN_PARTS = {
    "knn_by_rows": ((4, 1, 2), ("knn",), "rows", 2, {"capacity": 512}),  # groups within shards
    "knn_of_one_group": ((4, 2, 1), ("knn",), "dense", 0, {"capacity": 2100, "group_size": 0}),
    "full": ((4, 1, 2), ("full",), "dense", 2, {"num_layers": 1}),
    "two_other_axes": ((2, 2, 2), ("knn",), "dense", 0, {"capacity": 512, "num_layers": 1}),
    "full_by_rows": ((4, 2, 1), ("full",), "rows", 0, {}),
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
        ((4, 1, 2), ("full", "full"), "dense", 0, {}),  # every other step by whole batches
    )
    def test_steps_in_parts_are_those_of_one_device(
        self, axes, kinds, update, warmup_steps, changes
    ):
        rest = kinds, update, warmup_steps
        params, metrics = three_steps(axes, *rest, tuple(changes.items()))
        # By any rules, as there is nothing to lay out.
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


class RefreshTest(absltest.TestCase):
    def test_no_device_gathers_a_table_whose_columns_are_split(self):
        functions = functions_on((1, 8, 1), "knn", "rows")
        names = functions.objective.due(0)
        refresh = functions.refresh.lower(names, functions.abstract_state).compile()
        found = collectives_of(refresh.as_text(), 8)
        # Columns of all rows become all columns of a share of the rows; then queries go round.
        once = [one for one in found if one.kind == "all-to-all" and not one.in_loop]
        self.assertEqual([sum(one.sizes) for one in once], [V * E // 8])
        self.assertLess(max(max(one.sizes) for one in found), V * E)
        state, _ = refresh(factories.first_state(functions, random_params(0)))
        expected = refreshed()[NEIGHBOURS]
        np.testing.assert_array_equal(state.extra[NEIGHBOURS], expected)
        self.assertTrue((np.diff(expected) != 0).any())


class CollectivesTest(parameterized.TestCase):
    @parameterized.parameters(((4, 1, 2), "knn"), ((1, 1, 8), "knn"), ((2, 1, 4), "nce"))
    def test_a_sampled_step_sends_nothing_of_the_table_size(self, axes, kind):
        sizes = collective_sizes(step_text(axes, kind, "rows"))
        self.assertNotEmpty(sizes)
        self.assertLess(max(sizes), V * E / 2)

    @parameterized.parameters((0, 64 * 4 + B * L), (128, 128))
    def test_gradients_of_the_table_are_summed_by_rows(self, row_capacity, num_rows):
        """Over the devices of the data axis; both the output's and the embeddings'."""
        text = step_text((8, 1, 1), "knn", "rows", row_capacity=row_capacity)
        reduced = re.findall(r"f32\[(\d+),16\]", "".join(collectives(text, "all-reduce")))
        self.assertEqual(max(map(int, reduced)), num_rows)

    def test_the_dense_update_and_the_exact_softmax_do(self):
        # Or else the test above would not know such a collective if it saw one.
        sizes = collective_sizes(step_text((4, 1, 2), "full", "dense"))
        self.assertGreaterEqual(max(sizes), V * E / 2)

    @parameterized.parameters(
        ((4, 1, 1), "knn"), (IN_PARTS["knn_by_rows"][0], "knn"),
        (IN_PARTS["knn_of_one_group"][0], "knn"), ((4, 1, 1), "full"),
        (IN_PARTS["full"][0], "full"), (IN_PARTS["full_by_rows"][0], "full"),
    )  # fmt: skip
    def test_gradients_of_parts_are_summed_over_data_once(self, axes, kind):
        alike = [case for case in IN_PARTS.values() if case[:2] == (axes, (kind,))]
        if alike:
            text = text_in_parts(*alike[0])
        else:
            text = step_text(axes, kind, "dense", num_parts=2, group_size=1, capacity=512)
        repeated, once = self.most_over_data(axes, text)
        self.assertLess(repeated, 512 * E)  # a quarter of the rows' gradients; ids are fewer
        self.assertGreaterEqual(once, V * E / 2)

    @parameterized.parameters("few_rows", "two_other_axes")
    def test_or_in_each_part(self, case):
        """Those of few rows, which are fewer numbers; and where two other axes are split."""
        if case == "few_rows":
            axes, capacity = (4, 1, 2), 64
            text = step_text(axes, "knn", "dense", num_parts=2, group_size=1, capacity=capacity)
        else:
            axes, *_, changes = IN_PARTS[case]
            capacity, text = changes["capacity"], text_in_parts(*IN_PARTS[case])
        repeated, once = self.most_over_data(axes, text)
        self.assertGreaterEqual(repeated, (4 * capacity + 4 * L) * E / 4)
        self.assertLess(once, E * E)

    @parameterized.parameters("full", "full_by_rows")
    def test_slices_exchange_the_sum_of_gradients_once(self, case):
        """Between devices 0-3 and 4-7, which `mesh.slices = 2` puts into two slices."""
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
        # The examples are dealt out to the parts: token ids of the batch.
        self.assertLessEqual(sum(one.bytes for one in rest), 4 * 2 * B * L)

    def most_over_data(self, axes, text: str) -> tuple[int, int]:
        """Most elements of an array that is sent along `data` inside loops, and outside."""
        size, *others = axes
        sent = [
            (one.in_loop, max(one.sizes))
            for one in collectives_of(text, math.prod(axes))
            if one.is_over(math.prod(others), size)
        ]
        inside, outside = ([n for is_in, n in sent if is_in == where] for where in (True, False))
        return max(inside), max(outside, default=0)


if __name__ == "__main__":
    absltest.main()
