"""How Triton kernels, torch tensors and plain numbers of the host write functions, and how axes are broadcast there.

Operators are Python's in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one target writes what Python has no operator for.

    `functions` maps a function to a format of its arguments. `power`, `select`, `floor_divide` and `modulo` take
    written operands. `helpers` names, for a function, the module-level helper that its format calls.
    """

    functions: Mapping[str, str]
    select: str
    power: str
    floor_divide: str = "{0} // {1}"
    modulo: str = "{0} % {1}"
    helpers: Mapping[str, str] = field(default_factory=dict)
    infinity: str = 'float("inf")'
    table: str = ""  # how a list of constants is indexed; empty: by nested choices
    elu_plus_one: str = ""  # `elu(x) + 1` in one step; empty: as it is written
    real: str = "{0}"  # a whole number of positions as a real one, where a function needs it
    real_operands: bool = False  # whether arithmetic needs it as well


TRITON = Dialect(
    functions={
        "abs": "tl.abs({0})",
        "exp": "tl.exp({0})",
        "exp2": "tl.exp2({0})",
        "log": "tl.log({0})",
        "log2": "tl.log2({0})",
        "sqrt": "tl.sqrt({0})",
        "tanh": "_tanh({0})",
        "sigmoid": "tl.sigmoid({0})",
        "silu": "_silu({0})",
        "gelu": "_gelu({0})",
        "softplus": "_softplus({0})",
        "relu": "tl.maximum({0}, 0.0)",
        "elu": "_elu({0})",
        "cos": "tl.cos({0})",
        "sin": "tl.sin({0})",
        "erf": "tl.erf({0})",
        "floor": "tl.floor({0})",
        "sign": "_sign({0})",
        "stop_gradient": "({0})",
        "min": "tl.minimum({0}, {1})",
        "max": "tl.maximum({0}, {1})",
        "clip": "tl.minimum(tl.maximum({0}, {1}), {2})",
    },
    select="tl.where({0}, {1}, {2})",
    power="_power({0}, {1})",
    floor_divide="_floor_divide({0}, {1})",
    modulo="_modulo({0}, {1})",
    helpers={name: f"_{name}" for name in ("tanh", "silu", "gelu", "softplus", "elu", "sign")},
    elu_plus_one="_elu_plus_one({0})",
    real="tl.cast({0}, tl.float32)",
)

TORCH = Dialect(
    functions={
        "abs": "({0}).abs()",
        "exp": "torch.exp({0})",
        "exp2": "torch.exp2({0})",
        "log": "torch.log({0})",
        "log2": "torch.log2({0})",
        "sqrt": "torch.sqrt({0})",
        "tanh": "torch.tanh({0})",
        "sigmoid": "torch.sigmoid({0})",
        "silu": "torch.nn.functional.silu({0})",
        "gelu": "torch.nn.functional.gelu({0})",
        "softplus": "torch.nn.functional.softplus({0})",
        "relu": "torch.relu({0})",
        "elu": "torch.nn.functional.elu({0})",
        "cos": "torch.cos({0})",
        "sin": "torch.sin({0})",
        "erf": "torch.erf({0})",
        "floor": "torch.floor({0})",
        "sign": "torch.sign({0})",
        "stop_gradient": "({0}).detach()",
        "min": "_minimum({0}, {1})",
        "max": "_maximum({0}, {1})",
        "clip": "_minimum(_maximum({0}, {1}), {2})",
    },
    select="_where({0}, {1}, {2}, q)",
    power="{0} ** {1}",
    helpers={"min": "_minimum", "max": "_maximum", "clip": "_minimum"},
    infinity="torch.inf",
    table="_entry({0}, {1})",
    elu_plus_one="_elu_plus_one({0})",
    real="({0}).to(q.dtype)",
    real_operands=True,  # torch multiplies whole and plain numbers in its default type
)


def torch_dialect(rows: str) -> Dialect:
    """TORCH where the tensor whose type numbers take has another name than `q`."""
    if rows == "q":
        return TORCH
    return replace(TORCH, select=f"_where({{0}}, {{1}}, {{2}}, {rows})", real=f"({{0}}).to({rows}.dtype)")


# Numbers of patterns keep the types that they have, so that whole ones are compared exactly.
PATTERN = replace(TORCH, select="_where({0}, {1}, {2})", real="({0}).double()", real_operands=False)

HOST = Dialect(
    functions={
        **{name: f"math.{name}({{0}})" for name in ("exp", "log", "log2", "sqrt", "tanh", "cos", "sin", "erf")},
        "exp2": "2.0 ** ({0})",
        "abs": "abs({0})",
        "floor": "math.floor({0})",
        "min": "min({0}, {1})",
        "max": "max({0}, {1})",
        "clip": "min(max({0}, {1}), {2})",
        "relu": "max({0}, 0.0)",
        "sigmoid": "1.0 / (1.0 + math.exp(-({0})))",
        "silu": "({0}) / (1.0 + math.exp(-({0})))",
        "softplus": "math.log1p(math.exp({0}))",
        "gelu": "({0}) * (1.0 + math.erf(({0}) / math.sqrt(2.0))) / 2.0",
        "elu": "({0} if {0} > 0.0 else math.expm1({0}))",
        "sign": "math.copysign(1.0, {0})",
        "stop_gradient": "({0})",
    },
    select="({1} if {0} else {2})",
    power="{0} ** {1}",
)
