"""Layers of many clients as single launches on a GPU, in Triton, which comes with torch for CUDA."""
