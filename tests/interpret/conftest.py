"""These tests run kernels in Triton's interpreter, which must be chosen before triton is imported.

`python tests/run.py interpret`, or `TRITON_INTERPRET=1 pytest tests/interpret`.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton")

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]
