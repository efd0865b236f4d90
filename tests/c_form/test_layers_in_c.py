"""Modules of layers whose cores run in C: several cores in one file, called by name and by the environment."""

from __future__ import annotations

import pytest
import torch

from attncc.check.load import load_module
from attncc.compiler import CompiledLayer, compile_any
from attncc.diagnostics import Source

TEXT = """
attention near(w = 4) { pattern = window(w - 1) }
attention ended(c = 3) { align = start; pattern = c * j + c - 1 <= i; normalize = rows + 1 }
layer written(dim, h = 2, c = 3) {
  input x[n, dim]
  param Wq[dim, dim], Wv[dim, dim]
  q = heads(x @ Wq, h)
  v = heads(x @ Wv, h)
  out = merge(attend near(q, q, v) + attend ended(q, pool(q, c), pool(v, c), c = c))
}
"""


@pytest.mark.parametrize("by_name", [True, False], ids=["form", "environment"])
def test_several_cores(by_name: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNCC_CFLAGS", "-O1")
    if not by_name:
        monkeypatch.setenv("ATTNCC_TARGET", "c")
    compiled = compile_any(Source("written.attn", TEXT))
    assert isinstance(compiled, CompiledLayer)
    module = load_module(compiled.text, "written")
    plain, made = module.Written(8, form="torch"), module.Written(8, form="c" if by_name else None)
    made.load_state_dict(plain.state_dict())
    x = torch.randn(2, 40, 8)
    outs = [each(x) for each in (plain, made)]
    torch.testing.assert_close(*outs)
    torch.testing.assert_close(*(torch.autograd.grad(o.square().sum(), list(m.parameters()))
                                 for o, m in zip(outs, (plain, made), strict=True)))  # fmt: skip
    steps, cache = [], None
    for token in x.split(1, 1):
        out, cache = made.step(token, cache)
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps, 1), outs[0].detach())
