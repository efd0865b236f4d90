"""Statements about a module that must hold exactly; a probe gives None where a spec makes no such statement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attncc.check.calls import Module, attention_of, gradient_name, inputs_of, offers_lse, run, run_dense
from attncc.check.drawn import uses_of
from attncc.check.fit import fits, fitted, lengths_of_tables, reads_tables
from attncc.check.given import fields_read
from attncc.check.oracle import OutsideTable, related
from attncc.check.report import Property
from attncc.check.sizes import G_OUT, Case, arguments
from attncc.spec.data import Data, Role, Size
from attncc.spec.expr import Vector, walk
from attncc.spec.model import Spec

Probe = Callable[[Module, Spec, str | None, tuple[int, int], torch.device | str], Property | None]


def causality(
    module: Module, spec: Spec, form: str | None, heads: tuple[int, int] = (2, 2), device: torch.device | str = "cpu"
) -> Property | None:
    """If no row is related to a later key: later keys change no bit of an output and get no gradient from it."""
    case = fitted(spec, _plain(heads, n=70, m=70))
    if case is None:
        return None
    n, cut = case.n, (case.n * 41 + 69) // 70
    inputs = inputs_of(spec, case, device)
    pairs = related(spec, n, n, heads[0], batch=case.batch, width=case.d, device=device, data=inputs)
    if pairs.triu(1).any():
        return None
    attention = attention_of(module, form, with_lse=False)
    decides = {node.name for core in spec.cores for node in walk(core.pattern) if isinstance(node, Vector)}
    decides |= uses_of(spec).keys()  # other data of later keys could relate them
    keys = [each for each in spec.data if each.is_column and each.is_real and each.name not in decides]
    data = {each.name: inputs[each.name].requires_grad_(each.is_real) for each in spec.data}
    out = attention(*data.values())[0][:, :, :cut]
    wanted = [data[each.name] for each in keys]
    gradients = torch.autograd.grad(out, wanted, inputs[G_OUT][:, :, :cut], materialize_grads=True)
    other = {
        each.name: torch.where(_along(each, n, device) >= cut, 3 - data[each.name], data[each.name]) for each in keys
    }
    changed = attention(*(data | other).values())[0][:, :, :cut]
    if not _same(out, changed):
        return Property("causality", form, False, f"{form or 'default'}: outputs change with later keys")
    leaked = any(
        bool((torch.where(_along(each, n, device) >= cut, gradient, 0) != 0).any())
        for each, gradient in zip(keys, gradients, strict=True)
    )
    return Property(
        "causality",
        form,
        not leaked,
        f"{form or 'default'}: {'later keys get a gradient' if leaked else 'later keys have no effect'}",
    )


def _along(declared: Data, m: int, device: torch.device | str) -> Tensor:
    """0 … m-1 along the axis of keys."""
    return torch.arange(m, device=device).reshape([m if axis is Size.KEYS else 1 for axis in declared.axes])


def empty_rows(
    module: Module, spec: Spec, form: str | None, heads: tuple[int, int] = (2, 2), device: torch.device | str = "cpu"
) -> Property | None:
    """A row without related keys gives exactly 0 and a gradient of exactly 0."""
    case = fitted(spec, replace(_plain(heads, n=40, m=23), kv_lengths=(23, 0)))
    if case is None:
        return None
    inputs = inputs_of(spec, case, device)
    lengths = inputs["kv_lengths"]
    pairs = related(
        spec, case.n, case.m, heads[0], batch=2, kv_lengths=lengths, width=case.d, device=device, data=inputs
    )
    empty = ~pairs.any(-1)
    found = run(attention_of(module, form, with_lse=False), spec, case, inputs)
    rows = {gradient_name(each.name): _of_rows(each, empty) for each in spec.data if each.is_row and each.is_real}
    wrong = [name for name, at in ({"out": empty} | rows).items() if (found[name][at] != 0).any()]
    text = f"not exactly 0: {', '.join(wrong)}" if wrong else f"{int(empty.sum())} rows give exactly 0"
    return Property("rows without keys", form, not wrong, f"{form or 'default'}: rows without keys: {text}")


def _of_rows(declared: Data, rows: Tensor) -> Tensor:
    """A statement about rows [B, H, n] along the axes that data have: true where it is for all that share a row."""
    for axis, place in ((Size.HEADS, 1), (Size.BATCH, 0)):
        if axis not in declared.axes:
            rows = rows.all(place)
    return rows


def extreme_scores(
    module: Module, spec: Spec, form: str | None, heads: tuple[int, int] = (2, 2), device: torch.device | str = "cpu"
) -> Property | None:
    """Scores near ±1e4 in float32 give finite results, if the exact results are finite."""
    case = fitted(spec, _plain(heads, n=33, m=45))
    if case is None:
        return None
    inputs = inputs_of(spec, case, device)
    values = [core.value for core in spec.cores]
    formulas = (expr for expr in fields_read(spec) if expr not in values)
    read = {node.name for expr in formulas for node in walk(expr) if isinstance(node, Vector)}
    inputs |= {name: inputs[name] * 100 for name in read}
    exact = run_dense(spec, case, inputs, torch.float64, offers_lse(module))
    most = torch.finfo(case.dtype).max
    if any((each.isnan() | (each.abs() > most)).any() for name, each in exact.items() if name != "lse"):
        return None
    found = run(attention_of(module, form, "lse" in exact), spec, case, inputs)
    wrong = [name for name, each in found.items() if (each.isfinite() != exact[name].isfinite()).any()]
    text = f"not finite: {', '.join(wrong)}" if wrong else "finite"
    return Property("extreme scores", form, not wrong, f"{form or 'default'}: scores near 1e4: {text}")


def same_bits(
    module: Module, spec: Spec, form: str | None, heads: tuple[int, int] = (2, 2), device: torch.device | str = "cpu"
) -> Property | None:
    """Two runs give the same bits, in gradients of learned parameters above all: many pairs add to one entry."""
    parameters = [gradient_name(each.name) for each in spec.data if each.role is Role.PARAMETER]
    case = fitted(spec, _plain(heads, n=70, m=70))
    if not parameters or case is None:
        return None
    inputs = inputs_of(spec, case, device)
    attention = attention_of(module, form, with_lse=False)
    one, other = (run(attention, spec, case, inputs) for _ in range(2))
    wrong = [name for name in ("out", *parameters) if not _same(one[name], other[name])]
    text = f"differ: {', '.join(wrong)}" if wrong else "have the same bits"
    return Property("same bits", form, not wrong, f"{form or 'default'}: gradients of parameters in two runs: {text}")


def outside_tables(
    module: Module, spec: Spec, form: str | None, heads: tuple[int, int] = (2, 2), device: torch.device | str = "cpu"
) -> Property | None:
    """A call in which a related pair reads beside a table is refused with a ValueError."""
    if not reads_tables(spec):
        return None
    far = (each for each in _far_calls(spec, heads) if not fits(spec, each))
    case = next((each for each in far if _is_outside(spec, each)), None)
    if case is None:
        return None
    inputs = inputs_of(spec, case, device)
    data = (inputs[each.name] for each in spec.data)
    found = "no error"
    try:
        attention_of(module, form, with_lse=False)(*data, **arguments(case, inputs))
    except ValueError:
        found = ""
    except Exception as error:  # noqa: BLE001  whatever a generated module raises is a finding
        found = f"{type(error).__name__}, not ValueError"
    text = f"{case.name}: {found}" if found else "an index outside raises ValueError"
    return Property("outside tables", form, not found, f"{form or 'default'}: tables: {text}")


def _is_outside(spec: Spec, case: Case) -> bool:
    """Whether an index lies outside for the very data of a case, which may decide what is related."""
    try:
        run_dense(spec, case, inputs_of(spec, case), torch.float64)
    except OutsideTable:
        return True
    return False


def _far_calls(spec: Spec, heads: tuple[int, int]) -> list[Case]:
    """Calls that are long, or stand far from the first position."""
    longest = min(max(lengths_of_tables(spec)) + 9, 600)
    usual = fitted(spec, _plain(heads, n=70, m=70)) or _plain(heads, n=7, m=7)
    plain = [replace(usual, n=n, m=n, name=f"n = {n}") for n in (usual.n, longest)]
    return [
        replace(each, q_start=start, k_start=k_start, name=f"{each.name}, q_start = {start}, k_start = {k_start}")
        for each in plain
        for start, k_start in ((None, 0), (None, longest), (longest, 0), (-longest, 0), (0, -longest))
    ]


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same, NaN included: that a formula has no value is said elsewhere."""
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())


def _plain(heads: tuple[int, int], n: int, m: int) -> Case:
    return Case(
        batch=2, heads=heads[0], kv_heads=heads[1], n=n, m=m, d=16, e=24, dtype=torch.float32, name=f"{heads} {n} {m}"
    )


PROBES: tuple[Probe, ...] = (causality, empty_rows, extreme_scores, same_bits, outside_tables)
