"""Whole modules as matrix algebra: the values of a layer with their shapes, and the attentions that it calls."""
