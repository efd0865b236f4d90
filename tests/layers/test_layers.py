"""The layers of specs/layers: right against dense execution, laid out, and modules as PyTorch wants them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attncc.check.layers.compare import check_layer, made_of
from attncc.check.layers.sizes import LayerCase, parameters_of, smaller_layer, tensors_of
from attncc.check.load import load_module
from attncc.compiler import CompiledLayer, compile_any, read_source
from tests.layers.shared import LAYERS, checked, compiled

PATHS = sorted(LAYERS.glob("*.attn"))
COMPILED = (  # each with operators and cores that the others lack
    "fastformer", "flash_causal", "funnel", "gated_attention_unit", "lama", "linear_attention", "linformer", "mega",
    "nystromformer", "retnet", "spatial_attention", "token_elimination", "transformer_block",
)  # fmt: skip
QUICK = (  # whose operators and kinds of cores others have
    "cbam", "channel_attention", "flash_quad", "gated_attention_unit_log", "gated_attention_unit_smooth",
    "gated_attention_unit_unbiased", "gated_convolution", "grouped_query", "linformer_key_value", "linformer_per_head",
    "longformer_layer", "mega_both_ways", "memory_compressed", "multi_query", "non_local_gaussian", "non_local_pooled",
    "nsa_layer", "nystromformer_of_batch", "reformer_layer", "retnet_group_norm", "single_headed_block",
    "sparse_fixed_per_head", "sparse_transformer_fixed", "sparse_transformer_per_head", "strided_convolution",
    "synthesizer_dense_factorized", "synthesizer_mixture", "synthesizer_random_factorized", "token_elimination",
)  # fmt: skip


def _compiled(path: Path) -> CompiledLayer:
    source = read_source(path)
    found = compile_any(source, in_c=False)
    assert isinstance(found, CompiledLayer)
    smaller = smaller_layer(found.spec, {})
    if smaller is not None:
        found = compile_any(source, smaller, in_c=False)
        assert isinstance(found, CompiledLayer)
    return found


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_it_equals_dense_execution(path: Path) -> None:
    compiled = _compiled(path)
    module = load_module(compiled.text, compiled.spec.name)
    report = check_layer(module, compiled.plan, ("torch",), quick=path.stem in QUICK)
    assert report.ok, "\n".join(report.failures)
    assert compiled.spec.name == path.stem and compiled.spec.summary
    assert max(map(len, compiled.text.splitlines())) <= 140  # texts of specs are as long as they are


@pytest.mark.parametrize("path", [LAYERS / f"{name}.attn" for name in COMPILED], ids=lambda path: path.stem)
def test_it_can_be_compiled_and_exported(path: Path) -> None:
    compiled = _compiled(path)
    module = load_module(compiled.text, compiled.spec.name)
    layer, parameters = compiled.spec, parameters_of(compiled.spec)
    case = LayerCase("compiled", 2, tuple((name, 24) for name in layer.sequences), (), torch.float32)
    inputs = [tensors_of(layer, case, parameters)[each.name].float() for each in layer.inputs]
    made = made_of(module, layer, parameters)
    lengths = torch.tensor([24, 13])
    expected = made(*inputs, lengths=lengths)
    found = torch.compile(made, fullgraph=True, backend="aot_eager")(*inputs, lengths=lengths)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    exported = torch.export.export(made, tuple(inputs), {"lengths": lengths})
    torch.testing.assert_close(exported.module()(*inputs, lengths=lengths), expected, rtol=1e-4, atol=1e-4)


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
