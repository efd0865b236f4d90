"""Kernels that sum keys once for all rows that see them: what the law `reassociate` makes of loops over full tiles.

For each tile of the fixed axis one kernel sums features times values over the tiles of the other axis that the whole
tile sees. Two more read these sums: one multiplies features of the tile with them, one finds the gradients of the
features. The same three serve rows, whose sums are over keys, and keys, whose gradients are sums over rows.
"""
