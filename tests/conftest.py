"""Every test sees eight CPU devices, and implicit rank promotion is an error."""

import os
import pathlib
import shutil
import sys
import tempfile

# JAX reads them at the start of its backend, so set them before any import. The caller's win.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# Once, since worker processes and processes of tests inherit it.
if "PYTEST_XDIST_WORKER" not in os.environ:
    # Most programs run once here, so optimisation would cost more than it saves.
    os.environ["XLA_FLAGS"] = " ".join(
        (
            "--xla_force_host_platform_device_count=8",
            "--xla_cpu_parallel_codegen_split_count=1",
            "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters",
            os.environ.get("XLA_FLAGS", ""),
        )
    )
    # A program is compiled once for all tests, processes and sessions, until it changes: keys of
    # the cache are digests of programs, flags and versions. Programs that changed stay, hence the
    # limit.
    compiled = pathlib.Path(__file__).parent.parent / ".pytest_cache" / "compiled"
    if sum(path.stat().st_size for path in compiled.glob("*")) > 2**30:
        shutil.rmtree(compiled)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiled)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    # Tests write tens of thousands of small files, so a disk would be slow.
    memory = pathlib.Path("/dev/shm")
    if (
        "TMPDIR" not in os.environ
        and os.access(memory, os.W_OK)
        and shutil.disk_usage(memory).free > 2**32
    ):
        temporary = tempfile.TemporaryDirectory(prefix="tests_", dir=memory)
        os.chmod(temporary.name, 0o1777)  # as for /tmp, for tests that drop their privileges
        os.environ["TMPDIR"] = tempfile.tempdir = temporary.name

import jax
import pytest

from xlm.common import entry_point
from xlm.training import compilation

# Torch for GPUs loads it, and with TensorFlow loaded that is a segmentation fault.
sys.modules["triton"] = None  # type: ignore[assignment]
compilation.keep_freed()
jax.config.update("jax_numpy_rank_promotion", "raise")
entry_point.collect_seldom()


# Files of some ten seconds and more, the longest first.
_LONG = (
    "buckets_test", "devices_test", "end_to_end_test", "multihost_test", "program_test",
    "builders_test",
    "cross_mlm_test", "draws_test", "replaced_token_run_test", "translation_test",
    "translate_test", "layout_test",
    "example_axes_test", "accumulation_test", "finetune_test", "replaced_token_test",
    "memory_test", "malformed_test", "masked_lm_test", "decoder_test", "translating_test",
    "bitext_test", "neighbours_test", "stages_test", "working_rows_test",
    "output_layer_test", "encoder_test", "studies_test", "fine_tuning_test",
    "decoding_test", "loop_test", "loop_stops_test", "export_test",
    "models_test", "export_tuned_test",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """Begin with the long files, since one at the end would run alone."""
    items.sort(key=lambda item: _LONG.index(item.path.stem) if item.path.stem in _LONG else 99)


@pytest.fixture(autouse=True, scope="module")
def _drop_compiled_programs():
    """Unload the programs of a module.

    Each takes several memory maps, a module up to 30,000. Linux allows 65,530 per process. Beyond
    that, XLA ends in a segmentation fault.
    """
    yield
    jax.clear_caches()
