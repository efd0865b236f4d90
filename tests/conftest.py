"""Settings of the whole test run; they must stand before torch is imported."""

from __future__ import annotations

import os

# Tests run in several processes at once: one thread each, or they wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
