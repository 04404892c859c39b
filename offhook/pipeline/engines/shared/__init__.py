"""What engines share: devices, memory, CUDA graphs and the inference thread."""
