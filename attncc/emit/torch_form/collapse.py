"""Texts by which the passes of the torch form take states: what templates read around the printed functions."""

from __future__ import annotations

from dataclasses import dataclass

from attncc.emit.operands import Operands
from attncc.emit.torch_form.form import TorchForm
from attncc.emit.torch_form.states import StatesPrinter
from attncc.emit.torch_form.texts import lines
from attncc.graph.core import Kind
from attncc.graph.ops import Op
from attncc.plan.model import Plan


@dataclass(frozen=True, slots=True)
class Collapse:
    """Texts for the template; lists are arguments one after the other."""

    rows: int
    near: bool
    text: str
    widths: str  # of the vectors whose products a pair takes, added up
    features: str  # of a token, times the width of what they are summed with
    state_size: str  # of a head, about: as if values were as wide as queries
    at_once: str  # how many numbers of a kind slabs have that are computed together
    together: bool  # whether slabs may be computed together, as batch entries
    by_query_head: bool  # whether query heads have states of their own
    block_names: str
    key_parts: str  # the same of a part of the pattern
    begun: list[str]
    row_gradients: list[str]
    added_results: str  # empty where nothing of rows has a gradient
    add: list[str]
    add_by_part: list[str]


def collapse_of(plan: Plan, operands: Operands, form: TorchForm) -> Collapse:
    """The texts of a plan with states."""
    assert plan.states is not None
    printer = StatesPrinter(plan, operands, form.uniform(), form.backward, form.used)
    of_rows = ("d_out_rows", *printer.statistics_of_slab())
    own = ("_entries_of(numbers, slab)", printer.heads_of("slab"))
    begun = (*printer.row_values, *own, "slab")
    return Collapse(
        rows=plan.slabs.block,
        near=printer.near,
        text=printer.text(),
        widths=_widths(plan),
        features=f"{_features(plan)} * (v.shape[-1] + 1)",
        state_size=f"{_features(plan)} * q.shape[-1]",
        # Loops over channels pass over scores many times, so that these had better lie near by.
        at_once="_SCORES // 4" if plan.torch.forward.find(Op.CHANNELS) else "_SCORES",
        together=not any(
            each.kind is Kind.OFFSET_NUMBER or (each.kind is Kind.TABLE and operands.has_batch(each))
            for each in operands
        ),
        by_query_head=plan.states.by_query_head,
        block_names=printer.block_names(),
        key_parts=printer.block_names("_part"),
        begun=lines("found", *begun, indent=24),
        row_gradients=lines("sums.of(slab)", *printer.row_values, *of_rows, *own, "slab", indent=24),
        added_results=_added_results(operands, form, printer),
        add=_add(printer),
        add_by_part=_add(printer, "_part"),
    )


def _widths(plan: Plan) -> str:
    products = sum(1 for node in plan.torch.forward if node.op in (Op.DOT, Op.CHANNELS))
    own = "q.shape[-1]" if products == 1 else f"{products} * q.shape[-1]"
    return " + ".join([own] * bool(products) + ["v.shape[-1]"])


def _features(plan: Plan) -> str:
    assert plan.states is not None
    of = {0: "1", 1: "q.shape[-1]"}
    powers = [of.get(len(term.factors), f"q.shape[-1] ** {len(term.factors)}") for term in plan.states.terms]
    return powers[0] if len(powers) == 1 else f"({' + '.join(powers)})"


def _add(printer: StatesPrinter, suffix: str = "") -> list[str]:
    """The arguments of the second pass of backward."""
    given, added = printer.added_arguments(suffix)
    return lines("collapsed", *given, *added)


def _added_results(operands: Operands, form: TorchForm, printer: StatesPrinter) -> str:
    """The gradients of a slab's rows with what states give."""
    given = [each.name for each in printer.row_gradients]
    if not given:
        return ""
    found = []
    for at, each in enumerate(operands.row_gradients(form.backward_graph)):
        if each.name in given:
            found.append(f"results[{at}] + given[{given.index(each.name)}].reshape(results[{at}].shape)")
        else:
            found.append(f"results[{at}]")
    return f"({', '.join(found)}{',' * (len(found) == 1)})"
