"""The PyTorch form: tile program → slabs of eager operations, and plain operations for compilers."""
