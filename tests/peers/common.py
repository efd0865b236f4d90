"""What the recorded runs of published attention implementations have in common.

Each `Peer` says how its layer's inputs and weights become the data of a spec and how the result becomes its output, so
that `run` can put any function of the emitted signature in the middle: the oracle, or a generated module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from attncc.diagnostics import Source
from attncc.spec.model import Spec
from attncc.spec.resolve import load as load_spec

HERE = Path(__file__).parent
SPECS = HERE.parent.parent / "specs"

Tensors = Mapping[str, Tensor]
Attention = Callable[..., Tensor]  # (*data, scale, kv_lengths, q_start, k_start) -> out
Operands = tuple[Tensor, ...]  # data in the order in which the spec declares them


@dataclass(frozen=True)
class Peer:
    """One recorded run: `operands` makes the data out of the tensors, `finish` the layer's output out of the result."""

    name: str
    spec: Spec
    operands: Callable[[Tensors], Operands]
    arguments: Mapping[str, object] = field(default_factory=dict)
    finish: Callable[[Tensors, Tensor], Tensor] = lambda tensors, out: out
    compilable: bool = True  # False: for the oracle only
    choices: Callable[[Tensors], Mapping[str, Tensor]] | None = None  # what the peer chose, as it was recorded
    text: str = ""  # the fields of the spec as a text, where the spec itself was made of expressions
    variant: str = ""  # tells it from another way to say the same

    @property
    def key(self) -> str:
        """What it goes by in tests."""
        return f"{self.name}-{self.variant.replace(' ', '-')}" if self.variant else self.name

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Everything recorded, by name."""
        return load_file(HERE / self.name / "tensors.safetensors")

    @property
    def tolerances(self) -> dict[torch.dtype, tuple[float, float]]:
        """(atol, rtol) for each dtype to compute in; a peer that used float32 itself agrees to float32 only."""
        recorded = description(self.name)["tolerance"]
        single = (recorded["float32"]["atol"], recorded["float32"]["rtol"])
        double = recorded.get("float64")
        return {torch.float32: single, torch.float64: (double["atol"], double["rtol"]) if double else single}


def description(name: str) -> dict[str, Any]:
    """The case.json of a peer."""
    content: dict[str, Any] = json.loads((HERE / name / "case.json").read_text())
    return content


def run(peer: Peer, attention: Attention, dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
    """out and every recorded gradient, computed with `attention` in `dtype`, each beside the recorded value."""
    recorded = peer.tensors
    leaves = {
        name: value.to(dtype).requires_grad_(f"grad.{name}" in recorded) if value.is_floating_point() else value
        for name, value in recorded.items()
        if name.startswith(("in.", "w.", "aux."))
    }
    arguments = {
        name: torch.tensor(value) if isinstance(value, tuple) else value for name, value in peer.arguments.items()
    }
    if peer.choices is not None:
        arguments["choices"] = dict(peer.choices(recorded))
    out = peer.finish(leaves, attention(*peer.operands(leaves), **arguments))
    wanted = [name for name, leaf in leaves.items() if leaf.requires_grad]
    gradients = torch.autograd.grad(out, [leaves[name] for name in wanted], recorded["grad_out"].to(dtype))
    pairs = {f"grad.{name}": (each, recorded[f"grad.{name}"]) for name, each in zip(wanted, gradients, strict=True)}
    return {"out": (out.detach(), recorded["out"])} | pairs


def assert_agrees(peer: Peer, attention: Attention, dtype: torch.dtype) -> None:
    """`attention` in the middle of the peer's layer gives the recorded output and gradients."""
    atol, rtol = peer.tolerances[dtype]
    for name, (found, expected) in run(peer, attention, dtype).items():
        error, limit = float((found - expected).abs().max()), atol + rtol * float(expected.abs().max())
        assert error <= limit, f"{peer.name}: {name} in {dtype} is off by {error:.1e}, allowed are {limit:.1e}"


def from_file(name: str, **parameters: object) -> Spec:
    """A spec of `specs/`."""
    path = SPECS / f"{name}.attn"
    return load_spec(Source(path.name, path.read_text()), {key: str(value) for key, value in parameters.items()})


def from_text(body: str) -> Spec:
    """A spec written here."""
    return load_spec(Source("peer.attn", f"attention peer {{\n{body}\n}}"))


def split_heads(x: Tensor, width: int) -> Tensor:
    """[B, n, H·d] → [B, H, n, d]"""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, H, n, d] → [B, n, H·d]"""
    return x.transpose(1, 2).flatten(2)


def output_projection(name: str) -> Callable[[Tensors, Tensor], Tensor]:
    """Heads concatenated, times W^T (+ b), plus a residual where there is one."""

    def finish(tensors: Tensors, out: Tensor) -> Tensor:
        result = functional.linear(join_heads(out), tensors[f"w.{name}.weight"], tensors.get(f"w.{name}.bias"))
        return result + tensors["in.residual"] if "in.residual" in tensors else result

    return finish
