"""The Triton form: tile program → kernels, and the code that launches them."""
