"""Kernels in C: the text of the Triton kernels, which is the tile program, translated statement by statement."""
