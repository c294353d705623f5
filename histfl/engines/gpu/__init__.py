"""Recorded steps, and layers of many clients as single launches in Triton, which comes with torch for CUDA."""
