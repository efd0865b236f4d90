"""Generated layers as a whole against recorded runs: output, gradients of inputs and of all weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from attncc.compiler import CompiledLayer, compile_any, read_source
from attncc.diagnostics import Source
from attncc.emit.layers.module import camel_case
from tests.modules import load_module
from tests.peers.chosen import HUGGING_FACE, reformer_text, tensors_of
from tests.peers.common import HERE, SPECS, description

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class LayerPeer:
    """One recorded run: how its weights become the layer's parameters."""

    name: str
    spec: str
    arguments: Mapping[str, int]
    parameters: Callable[[Tensors], Mapping[str, Tensor]]
    lengths: tuple[int, ...] | None = None
    built_with: Mapping[str, str] = field(default_factory=dict)
    finish: Callable[[Tensors, Tensor], Tensor] = lambda tensors, out: out
    inputs: Callable[[Tensors], tuple[Tensor, ...]] = lambda tensors: (tensors["in.x"],)
    text: str = ""  # of a layer that is not in the catalogue


def _linear(tensors: Tensors, peer: str, weight: str, bias: str | None = None) -> dict[str, Tensor]:
    """W of x @ W, and b."""
    found = {weight: tensors[f"w.{peer}.weight"].mT}
    return found | ({bias: tensors[f"w.{peer}.bias"]} if bias else {})


def _gated(tensors: Tensors) -> dict[str, Tensor]:
    hidden, biases = tensors["w.to_hidden.0.weight"].mT, tensors["w.to_hidden.0.bias"]
    values, gates = hidden.chunk(2, -1)
    value_bias, gate_bias = biases.chunk(2)
    output = "to_out.0" if "w.to_out.0.weight" in tensors else "to_out"
    return {
        "norm_gain": tensors["w.norm.weight"],
        "norm_bias": tensors["w.norm.bias"],
        "Wu": gates,
        "bu": gate_bias,
        "Wv": values,
        "bv": value_bias,
        **_linear(tensors, "to_qk.0", "Wz", "bz"),
        **_linear(tensors, output, "Wo", "bo"),
    }


def _gau(tensors: Tensors) -> dict[str, Tensor]:
    """Its bias is multiplied by sqrt(dim), the spec's by sqrt(s)."""
    gamma, beta = tensors["w.offsetscale.gamma"], tensors["w.offsetscale.beta"]
    dim, s = tensors["in.x"].shape[-1], gamma.shape[-1]
    bias = tensors["w.rel_pos_bias.relative_attention_bias.weight"][:, 0] * (dim / s) ** 0.5
    return {**_gated(tensors), "gq": gamma[0], "gk": gamma[1], "bq": beta[0], "bk": beta[1], "bias": bias}


def _flash(tensors: Tensors) -> dict[str, Tensor]:
    gamma, beta = tensors["w.qk_offset_scale.gamma"], tensors["w.qk_offset_scale.beta"]
    bias = tensors["w.rel_pos_bias.relative_attention_bias.weight"].mT
    return {**_gated(tensors), "gamma": gamma, "beta": beta, "bias": bias}


def _linformer(tensors: Tensors) -> dict[str, Tensor]:
    found = {
        **_linear(tensors, "to_q", "Wq"),
        **_linear(tensors, "to_k", "Wk"),
        **_linear(tensors, "to_out", "Wo", "bo"),
    }
    found["E"] = tensors["w.proj_k"].mT
    if "w.proj_v" in tensors:
        found |= {**_linear(tensors, "to_v", "Wv"), "F": tensors["w.proj_v"].mT}
    return found


def _fastformer(tensors: Tensors) -> dict[str, Tensor]:
    return {
        **_linear(tensors, "query", "Wq", "bq"),
        **_linear(tensors, "key", "Wk", "bk"),
        **_linear(tensors, "query_att", "Wa", "ba"),
        **_linear(tensors, "key_att", "Wb", "bb"),
        **_linear(tensors, "transform", "Wt", "bt"),
    }


def _fastformer_per_head(tensors: Tensors) -> dict[str, Tensor]:
    return {
        **_linear(tensors, "to_qkv", "Wqkv"),
        **_linear(tensors, "to_q_attn_logits", "a"),
        **_linear(tensors, "to_k_attn_logits", "c"),
        **_linear(tensors, "to_r", "Wr", "br"),
        **_linear(tensors, "to_out", "Wo", "bo"),
    }


def _lama(tensors: Tensors) -> dict[str, Tensor]:
    return {"P": tensors["w._attention._p"], "Q": tensors["w._attention._q"]}


def _single_headed(tensors: Tensors) -> dict[str, Tensor]:
    gates = {name: tensors[f"w.{peer}"].flatten() for name, peer in (("sq", "qs"), ("sk", "ks"), ("sv", "vs"))}
    norm = {"gain": tensors["w.qln.weight"], "bias": tensors["w.qln.bias"]}
    return {**_linear(tensors, "q", "Wq", "bq"), **_linear(tensors, "vq.l1", "Wv", "bv"), **gates, **norm}


def _unprojected(width: int) -> dict[str, Tensor]:
    """The peer ends where heads are joined."""
    return {"Wo": torch.eye(width), "bo": torch.zeros(width)}


def _longformer(tensors: Tensors) -> dict[str, Tensor]:
    found = _unprojected(32)
    for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
        found |= _linear(tensors, name, f"W{letter}", f"b{letter}")
        if f"w.{name}_global.weight" in tensors:
            found |= _linear(tensors, f"{name}_global", f"W{letter}g", f"b{letter}g")
    return found


def _marked(name: str) -> Callable[[Tensors], tuple[Tensor, ...]]:
    return lambda tensors: (tensors["in.x"], tensors_of(name)["aux.is_global"].bool())


def _kept(name: str, aux: str, *, hidden: bool) -> Callable[[Tensors, Tensor], Tensor]:
    """Rows of padding are 0."""

    def finish(tensors: Tensors, out: Tensor) -> Tensor:
        mask = tensors_of(name)[aux].bool() ^ hidden
        return out * mask[..., None]

    return finish


def _largest(tensors: Tensors) -> dict[str, Tensor]:
    names = {"Wq": "to_q", "Wk": "to_k", "Wv": "to_v", "Wo": "to_out"}
    found = {name: tensors[f"w.{peer}.weight"].mT for name, peer in names.items()}
    return found | {"bo": torch.zeros(24)}


def _predicted(tensors: Tensors) -> dict[str, Tensor]:
    return {
        **_linear(tensors, "dense.0", "W1", "b1"),
        "W2": tensors["w.dense.2.weight"].mT[None],
        "b2": tensors["w.dense.2.bias"][None],
        **_linear(tensors, "value_fc", "Wv", "bv"),
        **_unprojected(16),
    }


def _projected(tensors: Tensors, out: Tensor) -> Tensor:
    weight, bias = tensors["w.projection_layer.weight"], tensors["w.projection_layer.bias"]
    return nn.functional.linear(out.flatten(1), weight, bias)


def _block_attention(tensors: Tensors) -> dict[str, Tensor]:
    gate, spatial = "channel_attention.", "spatial_attention."
    return {
        **_linear(tensors, "ChannelGate.mlp.1", f"{gate}W", f"{gate}b"),
        **_linear(tensors, "ChannelGate.mlp.3", f"{gate}V", f"{gate}c"),
        f"{spatial}W": tensors["w.SpatialGate.spatial.conv.weight"],
        f"{spatial}gain": tensors["w.SpatialGate.spatial.bn.weight"],
        f"{spatial}bias": tensors["w.SpatialGate.spatial.bn.bias"],
        f"{spatial}average": tensors["aux.bn_running_mean"],
        f"{spatial}spread": tensors["aux.bn_running_var"],
    }


def _shared(tensors: Tensors) -> dict[str, Tensor]:
    """One projection for queries and keys; rotations are recorded as [heads, d, rounds, buckets / 2]."""
    found = {**_linear(tensors, "query_key", "Wqk"), **_linear(tensors, "value", "Wv")}
    return found | {"R": tensors["aux.rotations"].transpose(1, 2)}


def _reformer(name: str, rounds: int, c: int, buckets: int, pattern: str, lengths: tuple[int, ...] | None) -> LayerPeer:
    """A layer of shared queries and keys whose projections, like the peer's, none follows."""
    text = f"""attention sorted_chunks {{
      {reformer_text(rounds, c, buckets, HUGGING_FACE, pattern)}
    }}
    layer reformer(dim, h = 2) {{
      input x[n, dim]
      param Wqk[dim, dim], Wv[dim, dim], R[h, {rounds}, dim // h, {buckets // 2}] = fixed(normal(1))
      qk = heads(x @ Wqk, h)
      out = merge(attend sorted_chunks(qk, qk, heads(x @ Wv, h), R))
    }}"""
    return LayerPeer(name, "reformer", {"dim": 32}, _shared, lengths, text=text)


def _landmarks(tensors: Tensors) -> dict[str, Tensor]:
    """One of the two runs has no convolution beside."""
    kernel = (
        tensors["w.res_conv.weight"][:, 0] if "w.res_conv.weight" in tensors else tensors["in.x"].new_zeros(2, 1, 1)
    )
    return {**_linear(tensors, "to_qkv", "Wqkv"), **_linear(tensors, "to_out.0", "Wo", "bo"), "C": kernel}


PEERS = (
    LayerPeer("cbam", "cbam", {"dim": 16, "hidden": 4}, _block_attention),
    LayerPeer("nystrom", "nystromformer_of_batch", {"dim": 24, "h": 2, "inner": 16, "r": 8, "width": 9}, _landmarks),
    LayerPeer(
        "nystrom_ragged_padding",
        "nystromformer_of_batch",
        {"dim": 24, "h": 2, "inner": 24, "r": 8, "width": 1},
        _landmarks,
        (45, 39),
    ),
    LayerPeer("gau_quadratic", "gated_attention_unit", {"dim": 16, "s": 8}, _gau),
    LayerPeer("gau_quadratic_causal", "gated_attention_unit_causal", {"dim": 16, "s": 8}, _gau),
    LayerPeer("gau_laplace_padding", "gated_attention_unit_laplace", {"dim": 16, "s": 12, "width": 24}, _gau, (40, 31)),
    LayerPeer("flash_causal", "flash_causal", {"dim": 16, "s": 8}, _flash, built_with={"chunk": "16"}),
    LayerPeer("flash_causal_ragged", "flash_causal", {"dim": 16, "s": 8}, _flash, built_with={"chunk": "16"}),
    LayerPeer("flash_noncausal", "flash", {"dim": 16, "s": 8}, _flash, built_with={"chunk": "16"}),
    LayerPeer("flash_noncausal_padding", "flash", {"dim": 16, "s": 12}, _flash, (45, 37), {"chunk": "12"}),
    LayerPeer("linformer", "linformer", {"dim": 32, "h": 4, "k": 16, "longest": 64}, _linformer),
    LayerPeer("linformer_short_sharekv", "linformer_shared", {"dim": 24, "h": 2, "k": 12, "longest": 64}, _linformer),
    LayerPeer("fastformer_official", "fastformer", {"dim": 32, "h": 4}, _fastformer),
    LayerPeer("fastformer_official_padding", "fastformer", {"dim": 24, "h": 3}, _fastformer, (37, 32, 25)),
    LayerPeer("fastformer_lucidrains", "fastformer_per_head", {"dim": 24, "h": 3}, _fastformer_per_head, (40, 33)),
    LayerPeer("lama_pooling", "lama_without_tanh", {"dim": 16, "h": 4}, _lama, (40, 33)),
    LayerPeer(
        "sha_rnn_attention",
        "single_headed",
        {"dim": 32},
        _single_headed,
        finish=lambda tensors, out: out.transpose(0, 1),
        inputs=lambda tensors: (tensors["in.query"].transpose(0, 1), tensors["in.memory"].transpose(0, 1)),
    ),
    LayerPeer("lama_pooling_tanh", "lama", {"dim": 16, "h": 4}, _lama, finish=_projected),
    LayerPeer(
        "longformer_global",
        "longformer_layer",
        {"dim": 32, "h": 4},
        _longformer,
        built_with={"w": "8"},
        inputs=_marked("longformer_global"),
    ),
    LayerPeer(
        "longformer_global_padding",
        "longformer_layer",
        {"dim": 32, "h": 2},
        _longformer,
        lengths=(48, 37),
        built_with={"w": "4"},
        finish=_kept("longformer_global_padding", "aux.is_masked", hidden=True),
        inputs=_marked("longformer_global_padding"),
    ),
    LayerPeer(
        "topk_xtransformers",
        "explicit_topk_layer",
        {"dim": 24, "h": 2},
        _largest,
        lengths=(48, 41),
        built_with={"keys": "6"},
        finish=_kept("topk_xtransformers", "aux.mask", hidden=False),
    ),
    _reformer("reformer_lsh_1round_causal", 1, 8, 8, "causal", None),
    _reformer("reformer_lsh_4rounds_causal", 4, 16, 8, "causal", None),
    _reformer("reformer_lsh_2rounds_padding", 2, 8, 6, "true", (48, 38)),
    LayerPeer("synthesizer_dense", "synthesizer_dense", {"dim": 16, "h": 1, "hidden": 32, "longest": 32}, _predicted),
)


@cache
def _compiled(spec: str, built_with: tuple[tuple[str, str], ...], text: str) -> CompiledLayer:
    source = Source(f"{spec}.attn", text) if text else read_source(SPECS / "layers" / f"{spec}.attn")
    compiled = compile_any(source, dict(built_with), in_c=False)
    assert isinstance(compiled, CompiledLayer)
    return compiled


def _module(peer: LayerPeer, folder: Path) -> nn.Module:
    compiled = _compiled(peer.spec, tuple(peer.built_with.items()), peer.text)
    path = folder / f"layer_{peer.name}.py"
    path.write_text(compiled.text, encoding="utf-8")
    made: nn.Module = getattr(load_module(path), camel_case(peer.spec))(**peer.arguments)
    return made


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_layers(peer: LayerPeer, dtype: torch.dtype, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    recorded = load_file(HERE / peer.name / "tensors.safetensors")
    module = _module(peer, tmp_path).to(dtype).eval()
    leaves = {
        name: value.to(dtype).requires_grad_(f"grad.{name}" in recorded)
        for name, value in recorded.items()
        if name.startswith(("in.", "w.", "aux.")) and value.is_floating_point()
    }
    lengths = None if peer.lengths is None else torch.tensor(peer.lengths)
    parameters = {name: each.to(dtype) for name, each in peer.parameters(leaves).items()}
    assert parameters.keys() == module.state_dict().keys()
    out = peer.finish(leaves, functional_call(module, parameters, peer.inputs(leaves), {"lengths": lengths}))
    pairs = {"out": (out.detach(), recorded["out"])}
    wanted = [name for name, leaf in leaves.items() if leaf.requires_grad]
    if wanted:
        found = torch.autograd.grad(out, [leaves[name] for name in wanted], recorded["grad_out"].to(dtype))
        pairs |= {f"grad.{name}": (each, recorded[f"grad.{name}"]) for name, each in zip(wanted, found, strict=True)}
    tolerance = description(peer.name)["tolerance"]
    limits = tolerance.get(str(dtype).removeprefix("torch."), tolerance["float32"])
    for name, (mine, its) in pairs.items():
        error, limit = float((mine - its).abs().max()), limits["atol"] + limits["rtol"] * float(its.abs().max())
        assert error <= limit, f"{name} in {dtype} is off by {error:.1e}, allowed are {limit:.1e}"
