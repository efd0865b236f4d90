"""Write a spec, compile it, run it, and compare with PyTorch's dense attention.

python examples/01_first_spec.py
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType

import torch
from torch.nn.functional import scaled_dot_product_attention

from attncc import Source, compile_source

SPEC = """
# Every query sees itself and the w keys before it.
attention recent(w = 64) {
  pattern = window(w)
}
"""


def load(text: str, folder: Path) -> ModuleType:
    """Import a module from its text; it needs torch (and triton on a GPU), not attncc."""
    file = folder / "recent.py"
    file.write_text(text, encoding="utf-8")
    found = importlib.util.spec_from_file_location(file.stem, file)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def main() -> None:
    compiled = compile_source(Source("recent.attn", SPEC), {"w": "100"})
    print(f"{compiled.spec.name}: {len(compiled.text.splitlines())} lines of Python")
    with tempfile.TemporaryDirectory() as folder:
        recent = load(compiled.text, Path(folder))

    q, k, v = (torch.randn(2, 4, 1000, 64, requires_grad=True) for _ in range(3))
    out = recent.attention(q, k, v)  # no 1000 x 1000 tensor, here or in the backward pass
    out.sum().backward()

    distance = torch.arange(1000)[:, None] - torch.arange(1000)
    mask = (distance >= 0) & (distance <= 100)
    difference = (out - scaled_dot_product_attention(q, k, v, mask)).abs().max().item()
    print(f"largest difference from dense attention with a mask: {difference:.1e}")
    assert difference < 1e-5


if __name__ == "__main__":
    main()
