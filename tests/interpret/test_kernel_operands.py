"""Kernels that read more than q, k and v give what the dense formula of their operands gives, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

import pytest
import torch
from kernel_modules import ADDITIVE, BIAS, BIASED, PRODUCT, given, kernels_of, op, param, spec_of
from torch import Tensor

from attncc.graph.core import Kind
from attncc.graph.ops import Op
from attncc.plan.model import Plan
from attncc.spec.data import Size
from attncc.spec.expr import (
    TRUE,
    Call,
    Compare,
    CompareOp,
    Const,
    Dot,
    Entry,
    Name,
    Negate,
    Reduce,
    Symbol,
    Token,
    Vector,
)
from attncc.spec.model import Spec

I, J, HEAD, SCALE, SCORE, ROWS = (  # noqa: E741 - as specs write them
    Symbol(each) for each in (Name.I, Name.J, Name.HEAD, Name.SCALE, Name.SCORE, Name.ROWS)
)
q, k, v = Vector("q"), Vector("k"), Vector("v")


@dataclass
class Row:
    """What a dense formula reads: operands spread over pairs, and where the pairs stand."""

    x: dict[str, Tensor]
    i: Tensor
    j: Tensor
    scale: float
    dots: dict[str, Tensor] = field(default_factory=dict)

    def dot(self, row: str, column: str) -> Tensor:
        return self.x[row] @ self.x[column].mT

    def channels(self, formula: Callable[..., Tensor], rows: str, columns: str) -> Tensor:
        one = [self.x[name][..., :, None, :] for name in rows.split()]
        other = [self.x[name][..., None, :, :] for name in columns.split()]
        return formula(*one, *other).sum(-1)


@dataclass(frozen=True)
class Mechanism:
    """A spec, and its dense meaning: scores, then weights, then normalisers from the sums of weights."""

    spec: Spec
    score: Callable[[Row], Tensor]
    weight: Callable[[Tensor, Row], Tensor] = lambda score, row: score.exp()
    normalizer: Callable[[Tensor, Row], Tensor] = lambda rows, row: rows
    related: Callable[[Tensor, Tensor], Tensor] = lambda i, j: j <= i


H = Size.HEADS
TABLE = Entry("b", (op("%", I, Const(8)), op("%", J, Const(8))))
BAND = Call("abs", (op("-", I, J),))


def scaled(row: Row) -> Tensor:
    return row.scale * row.dot("q", "k")


MECHANISMS = {
    "bias by distance": Mechanism(
        BIASED,
        lambda row: scaled(row) + row.x["bias_by_offset"],
    ),
    "bias by distance, everywhere": Mechanism(
        spec_of(op("+", PRODUCT, BIAS), param("bias", H, 17), pattern=TRUE),
        lambda row: scaled(row) + row.x["bias_by_offset"],
        related=lambda i, j: (i - j) == (i - j),
    ),
    "bias by distance in a window, no softmax": Mechanism(
        spec_of(
            op("*", PRODUCT, BIAS),
            param("bias", H, 17),
            weight=op("^", Call("relu", (SCORE,)), Const(2)),
            normalizer=Const(1),
            pattern=Compare(CompareOp.LESS, BAND, Const(40)),
        ),
        lambda row: scaled(row) * row.x["bias_by_offset"],
        weight=lambda score, row: score.relu() ** 2,
        normalizer=lambda rows, row: torch.ones_like(rows),
        related=lambda i, j: (i - j).abs() < 40,
    ),
    "sink": Mechanism(
        spec_of(PRODUCT, param("sink", H), normalizer=op("+", ROWS, Call("exp", (Entry("sink", (HEAD,)),)))),
        scaled,
        normalizer=lambda rows, row: rows + row.x["sink_of_row"].exp()[..., None],
    ),
    "scaled bias by distance": Mechanism(
        spec_of(op("*", SCALE, op("+", Dot(q, k), BIAS)), param("bias", H, 17)),
        lambda row: row.scale * (row.dot("q", "k") + row.x["bias_by_offset"]),
    ),
    "number in score and normaliser": Mechanism(
        spec_of(
            op("*", PRODUCT, Token("heat")),
            param("heat", Size.BATCH, H, Size.QUERIES),
            normalizer=op("+", ROWS, Call("exp", (Token("heat"),))),
        ),
        lambda row: scaled(row) * row.x["heat"][..., :, None],
        normalizer=lambda rows, row: rows + row.x["heat"].exp()[..., None],
    ),
    "numbers of rows and keys": Mechanism(
        spec_of(
            op("-", op("/", PRODUCT, Token("heat")), Token("cost")),
            param("heat", Size.BATCH, H, Size.QUERIES),
            param("cost", Size.BATCH, H, Size.KEYS),
        ),
        lambda row: scaled(row) / row.x["heat"][..., :, None] - row.x["cost"][..., None, :],
    ),
    "numbers alone": Mechanism(
        spec_of(Call("relu", (Dot(Entry("a", (HEAD,), is_vector=True), op("+", q, k)),)), param("a", H, Size.WIDTH)),
        lambda row: (row.x["a_of_row"][..., :, None] + row.x["a_of_key"][..., None, :]).relu(),
    ),
    "two products": Mechanism(
        spec_of(op("*", Dot(q, k), Dot(q, Call("relu", (k,))))),
        lambda row: row.dot("q", "k") * row.dot("q", "k_of_key"),
    ),
    "products of two widths": Mechanism(
        spec_of(
            op("+", PRODUCT, Dot(Vector("p"), Vector("r"))),
            param("p", Size.BATCH, H, Size.QUERIES, 5),
            param("r", Size.BATCH, H, Size.KEYS, 5),
        ),
        lambda row: scaled(row) + row.dot("p", "r"),
    ),
    "scores from values": Mechanism(spec_of(Dot(q, v)), lambda row: row.dot("q", "v")),
    "additive": Mechanism(
        ADDITIVE,
        lambda row: row.channels(lambda q, a, k: a * (q + k).tanh(), "q a_of_row", "k"),
    ),
    "squared distance": Mechanism(
        spec_of(Negate(Reduce("sum", op("^", op("-", q, k), Const(2))))),
        lambda row: -row.channels(lambda q, k: (q - k) ** 2, "q", "k"),
    ),
    "channels that read the call": Mechanism(
        spec_of(Negate(Reduce("sum", op("*", SCALE, Call("abs", (op("-", q, k),)))))),
        lambda row: -row.scale * row.channels(lambda q, k: (q - k).abs(), "q", "k"),
    ),
    "channels that divide": Mechanism(
        spec_of(
            op("+", PRODUCT, Reduce("sum", op("/", Const(1), op("+", Const(1), op("^", op("-", q, k), Const(2))))))
        ),
        lambda row: scaled(row) + row.channels(lambda q, k: 1 / (1 + (q - k) ** 2), "q", "k"),
    ),
    "table": Mechanism(
        spec_of(op("+", PRODUCT, TABLE), param("b", 8, 8)), lambda row: scaled(row) + row.x["b"][row.i % 8, row.j % 8]
    ),
    "table by numbers of rows and keys": Mechanism(
        spec_of(
            op("+", PRODUCT, Entry("b", (Token("mine", whole=True), Token("other", whole=True)))),
            given("mine", Size.BATCH, H, Size.QUERIES),
            given("other", Size.BATCH, H, Size.KEYS),
            param("b", 3, 4),
        ),
        lambda row: scaled(row) + row.x["b"][row.x["mine"].long()[..., None], row.x["other"].long()[..., None, :]],
    ),
    "table and no keys": Mechanism(spec_of(TABLE, param("b", 8, 8)), lambda row: row.x["b"][row.i % 8, row.j % 8]),
    "table and bias, no softmax": Mechanism(
        spec_of(
            op("+", op("+", PRODUCT, TABLE), BIAS),
            param("b", 8, 8),
            param("bias", H, 17),
            weight=op("^", Call("relu", (SCORE,)), Const(2)),
            normalizer=Const(1),
        ),
        lambda row: scaled(row) + row.x["b"][row.i % 8, row.j % 8] + row.x["bias_by_offset"],
        weight=lambda score, row: score.relu() ** 2,
        normalizer=lambda rows, row: torch.ones_like(rows),
    ),
}
SIZES = [(1, 7), (7, 63), (35, 70), (70, 35)]  # tiles: 32 x 16; sums by distance are shared from 65 rows on


@dataclass(frozen=True)
class Sizes:
    """Sizes and places of one call."""

    n: int
    m: int
    dtype: torch.dtype = torch.float32
    group: int = 1
    starts: tuple[int, int] | None = None
    lengths: tuple[int, int] | None = None

    @property
    def q_starts(self) -> tuple[int, int]:
        return self.starts or (self.m - self.n, self.m - self.n)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Plan, ModuleType]]:
    known: dict[str, tuple[Plan, ModuleType]] = {}

    def build(name: str) -> tuple[Plan, ModuleType]:
        if name not in known:
            known[name] = kernels_of(MECHANISMS[name].spec, tmp_path_factory.mktemp("kernels"))
        return known[name]

    return build


def make_operands(plan: Plan, call: Sizes, seed: int) -> dict[str, Tensor]:
    """Random operands of a core; keys beyond the visible ones are NaN."""
    generator = torch.Generator().manual_seed(seed)
    widths = {"d": 6, "e": 20, "d_2": 5}
    kv_heads, heads = 2, 2 * call.group
    made = {}
    data = {each.name: each for each in plan.spec.data}
    for at, each in enumerate(plan.core.operands):
        match each.kind:
            case Kind.ROW_VECTOR:
                shape = (2, heads, call.n, widths[each.width or "e"])
            case Kind.COLUMN_VECTOR:
                shape = (2, kv_heads, call.m, widths[each.width or "e"])
            case Kind.ROW_NUMBER:
                shape = (2, heads, call.n)
            case Kind.COLUMN_NUMBER:
                shape = (2, kv_heads, call.m)
            case Kind.OFFSET_NUMBER:
                shape = (1 + (call.n + at) % 2, heads, call.n + call.m)
            case Kind.TABLE:
                shape = tuple(int(axis) for axis in data[each.name].axes if isinstance(axis, int))
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        if each.name == "heat":
            value = value.abs() + 0.5
        if each.name in ("mine", "other"):
            value = value.abs().clamp(max=1).round()
        made[each.name] = value.to(call.dtype if each.kind.is_vector else torch.float32)
        if call.lengths and each.kind in (Kind.COLUMN_VECTOR, Kind.COLUMN_NUMBER):
            for entry, length in enumerate(call.lengths):
                made[each.name][entry, :, length:] = torch.nan
    return made


def dense(name: str, plan: Plan, x: dict[str, Tensor], call: Sizes, scale: float) -> tuple[Tensor, Tensor]:
    """Vectors and normalisers by the dense formula."""
    mechanism, core = MECHANISMS[name], plan.core
    spread = {}
    for each in core.operands:
        value = x[each.name]
        if each.kind in (Kind.COLUMN_VECTOR, Kind.COLUMN_NUMBER):
            for entry, length in enumerate(call.lengths or ()):
                mask = (torch.arange(call.m) >= length).view(-1, *(1,) * (value.dim() - 3))
                rest = (value[:entry], value[entry].masked_fill(mask, 0)[None], value[entry + 1 :])
                value = torch.cat(rest)
            value = value.repeat_interleave(call.group, 1)
        if each.kind is Kind.OFFSET_NUMBER:
            place = torch.arange(call.n)[:, None] - torch.arange(call.m) + call.m - 1
            value = value.expand(2, -1, -1)[:, :, place]
        spread[each.name] = value
    i = torch.tensor(call.q_starts)[:, None, None, None] + torch.arange(call.n)[:, None]
    j = torch.arange(call.m).view(1, 1, 1, -1)
    row = Row(spread, i, j, scale)
    length = torch.tensor(call.lengths or (call.m, call.m)).view(-1, 1, 1, 1)
    related = mechanism.related(i, j) & (j < length)
    score = mechanism.score(row).expand(*spread[core.rows].shape[:3], call.m)
    weight = torch.where(related, mechanism.weight(torch.where(related, score, 0), row), 0)
    rows = weight.sum(-1, keepdim=True)
    norm = mechanism.normalizer(rows, row)
    inverse = torch.where(norm == 0, 0, 1 / torch.where(norm == 0, 1, norm))
    return weight @ spread[core.values] * inverse, norm[..., 0]


def check(name: str, plan: Plan, module: ModuleType, call: Sizes, seed: int = 0) -> None:
    operands = make_operands(plan, call, seed)
    scale = 0.3
    numbers = (scale,) if plan.spec.reads_scale else ()
    starts = torch.tensor(call.starts) if call.starts else None
    lengths = torch.tensor(call.lengths) if call.lengths else None
    places = (0 if call.starts else call.m - call.n, 0, starts, lengths)

    exact = {key: value.double().nan_to_num(0).requires_grad_() for key, value in operands.items()}
    out, norm = dense(name, plan, exact, call, scale)
    d_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    d_out = d_out.to(call.dtype)
    loss = (out * d_out.double()).sum()
    d_lse = torch.randn(norm.shape, generator=torch.Generator().manual_seed(seed + 2)) * 0.1
    if plan.has_lse:
        loss = loss + torch.where(norm > 0, torch.where(norm > 0, norm, 1).log() * d_lse, 0).sum()
        d_lse = torch.where(norm > 0, d_lse, 0).float()
    expected = torch.autograd.grad(loss, list(exact.values()), allow_unused=True)

    # Slab by slab is another form's way; here it stands for whoever sums into tables.
    pairs = zip(exact.values(), expected, strict=True)
    by_slab = [(torch.zeros_like(each) if right is None else right).float() for each, right in pairs]
    module._backward = lambda *_: by_slab
    keep_residual = (call.dtype != torch.float32,) if plan.reads_delta else ()
    found, *statistics = module._launch_forward(*operands.values(), *numbers, *places, *keep_residual)
    assert found.dtype == call.dtype
    close("out", found, out.detach(), call.dtype)
    if plan.has_lse:
        at = [each for each in plan.gpu.forward.outputs if each != "out"].index("lse")
        close("lse", statistics[at], norm.detach().log(), torch.float32 if call.dtype == torch.float32 else call.dtype)
    lse = (d_lse,) if plan.has_lse else ()
    gradients = module._launch_backward(*operands.values(), found, *statistics, d_out, *lse, *numbers, *places)
    assert len(gradients) == len(operands)
    for each, gradient, right in zip(plan.core.operands, gradients, expected, strict=True):
        right = torch.zeros_like(exact[each.name]) if right is None else right
        assert gradient.shape == operands[each.name].shape, each.name
        assert gradient.dtype == (call.dtype if each.kind.is_vector else torch.float32), each.name
        close(f"gradient of {each.name}", gradient, right, call.dtype)


def close(name: str, found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    found = found.double()
    finite = expected.isfinite()
    assert (found.isfinite() == finite).all(), name
    error = (found - expected)[finite].abs()
    limit = {torch.float32: 3e-5, torch.float16: 1e-2}[dtype]
    size = expected[finite].abs().max().item() if finite.any() else 0.0
    worst = error.max().item() if error.numel() else 0.0
    assert worst <= limit * (size + 1e-2), f"{name}: {worst} of {size}"


@pytest.mark.parametrize("name", MECHANISMS)
def test_kernels_agree_with_the_dense_formula(name: str, built: Callable[[str], tuple[Plan, ModuleType]]) -> None:
    plan, module = built(name)
    by_channel = any(node.op is Op.CHANNELS for node in plan.gpu.forward)  # slow in the interpreter
    for n, m in SIZES[:2] if by_channel else SIZES:
        check(name, plan, module, Sizes(n, m))


@pytest.mark.parametrize("name", MECHANISMS)
def test_groups_lengths_and_starts(name: str, built: Callable[[str], tuple[Plan, ModuleType]]) -> None:
    check(name, *built(name), Sizes(35, 40, group=2, lengths=(40, 19)))
    check(name, *built(name), Sizes(20, 40, torch.float16, group=3, starts=(20, 5), lengths=(0, 31)))
