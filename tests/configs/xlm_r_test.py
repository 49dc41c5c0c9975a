"""XLM-R's models as `transformers` has them."""

from absl.testing import parameterized

from configs import xlm_r
from xlm.interop import model_folder


class ModelsTest(parameterized.TestCase):
    @parameterized.parameters(*xlm_r.MODELS)
    def test_a_published_model_has_a_class_in_transformers(self, name):
        sizes = xlm_r.get_config(name).model.to_dict()
        self.assertEqual(model_folder.why_not_transformers(sizes), "")
