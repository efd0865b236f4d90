"""The layers of specs/layers: right against dense execution, laid out, and modules as PyTorch wants them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attncc.check.layers.compare import check_layer
from attncc.check.load import load_module
from tests.layers.shared import PATHS, checked, compiled, small

QUICK = (  # whose operators and kinds of cores others have
    "cbam", "channel_attention", "flash_quad", "gated_attention_unit_log", "gated_attention_unit_smooth",
    "gated_attention_unit_unbiased", "gated_convolution", "grouped_query", "linformer_key_value", "linformer_per_head",
    "longformer_layer", "mega_both_ways", "memory_compressed", "multi_query", "non_local_gaussian", "non_local_pooled",
    "nsa_layer", "nystromformer_of_batch", "reformer_layer", "retnet_group_norm", "single_headed_block",
    "sparse_fixed_per_head", "sparse_transformer_fixed", "sparse_transformer_per_head", "strided_convolution",
    "synthesizer_dense_factorized", "synthesizer_mixture", "synthesizer_random_factorized", "token_elimination",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_it_equals_dense_execution(path: Path) -> None:
    found, module = small(path)
    report = check_layer(module, found.plan, ("torch",), quick=path.stem in QUICK)
    assert report.ok, "\n".join(report.failures)
    assert found.spec.name == path.stem and found.spec.summary
    assert max(map(len, found.text.splitlines())) <= 140  # texts of specs are as long as they are


_CALLED = """
attention pointed { param sink[H] = 0; pattern = causal; normalize = rows + exp(sink[h]) }
layer inner(dim) {
  input x[n, dim]
  param W[dim, dim], R[dim, 2] = fixed(normal(1))
  out = x @ W + x @ R @ transposed(R)
}
layer block(dim, h = 2) {
  input x[n, dim]
  param inner[dim] = ones
  y = inner(x * inner)
  z = heads(y, h)
  out = inner(merge(attend pointed(z, z, z)))
}
layer written(dim) {
  input x[n, dim]
  y = block(x)
  param block_y[dim] = ones, block_2[dim]
  out = block(y) * block_y + block_2 + x
}
"""


def test_layers_that_are_called_are_parts_of_the_module() -> None:
    found = compiled(_CALLED.replace("param inner[dim]", "param gain[dim]").replace("x * inner", "x * gain"))
    module = load_module(found.text, found.spec.name)
    made = module.Written(8)
    names = [f"{part}.{name}" for part in ("block", "block_3") for name in
             ("gain", "inner.W", "inner.R", "inner_2.W", "inner_2.R", "sink")]  # fmt: skip
    assert sorted(made.state_dict()) == sorted([*names, "block_y", "block_2"])
    assert {name for name, _ in made.named_buffers()} == {name for name in names if name.endswith("R")}
    other = module.Written(8)
    other.load_state_dict(made.state_dict())
    x = torch.randn(2, 9, 8)
    assert torch.equal(made(x), other(x))
    other.block.load_state_dict(made.block_3.state_dict())
    assert torch.equal(other.block.inner.W, made.block_3.inner.W) and not torch.equal(made(x), other(x))
    report = checked(found.spec.source.text, quick=True)
    assert report.ok, "\n".join(report.failures)


def test_a_part_takes_no_name_that_its_layer_has() -> None:
    found = compiled(_CALLED)
    state = load_module(found.text, found.spec.name).Written(8).state_dict()
    assert {"block.inner", "block.inner_2.W", "block.inner_3.W"} <= state.keys()
