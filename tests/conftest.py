"""Every test sees eight CPU devices, and implicit rank promotion is an error."""

import os

# Read when JAX starts its backend, so before anything imports it. Flags of the caller win.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + os.environ.get(
    "XLA_FLAGS", ""
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
# Most programs run once here, so what optimising them would take is more than it would save.
jax.config.update("jax_disable_most_optimizations", True)
