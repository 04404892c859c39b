"""Speech models in plain torch: modules, kernels, checkpoints."""
