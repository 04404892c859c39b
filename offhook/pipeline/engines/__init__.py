"""Speech model inference shared by many calls: streams, KV pages, scheduling and CUDA graphs."""
