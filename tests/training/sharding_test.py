"""Meshes that fit and meshes that do not."""

import jax
from absl.testing import absltest, parameterized

from training.sharding import MeshSettings, make_mesh, padded_vocab_size


def settings(data: int, fsdp: int, model: int) -> MeshSettings:
    return MeshSettings(data=data, fsdp=fsdp, model=model, vocab_multiple=8, rules=())


class MeshTest(parameterized.TestCase):
    @parameterized.parameters(
        ((8, 1, 1), (8, 1, 1)),
        ((2, 2, 2), (2, 2, 2)),
        ((-1, 1, 1), (8, 1, 1)),
        ((2, -1, 2), (2, 2, 2)),
        ((1, 1, -1), (1, 1, 8)),
        ((8, 1, -1), (8, 1, 1)),
    )
    def test_axes(self, wanted, expected):
        mesh = make_mesh(settings(*wanted))
        self.assertEqual(mesh.shape, dict(zip(("data", "fsdp", "model"), expected, strict=True)))
        self.assertEqual(set(mesh.devices.flat), set(jax.devices()))

    def test_over_some_devices(self):
        devices = jax.devices()[2:5]
        self.assertEqual(list(make_mesh(settings(-1, 1, 1), devices).devices.flat), devices)

    @parameterized.parameters(
        (1, 1, 1), (3, 1, 1), (4, 4, 1), (-1, 3, 1), (-1, -1, 1), (-1, 0, 1), (-2, -4, 1), (0, 8, 1)
    )
    def test_axes_that_do_not_fit(self, data, fsdp, model):
        with self.assertRaisesRegex(
            ValueError, f"data={data}, fsdp={fsdp}, model={model} does not fit 8 devices"
        ):
            make_mesh(settings(data, fsdp, model))


class PaddedVocabSizeTest(parameterized.TestCase):
    @parameterized.parameters((600, 128, 640), (640, 128, 640), (641, 128, 768), (5, 1, 5))
    def test_it_is_the_next_multiple(self, vocab_size, multiple, expected):
        self.assertEqual(padded_vocab_size(vocab_size, multiple), expected)


if __name__ == "__main__":
    absltest.main()
