"""Plan → the text of a module: header, kernels, torch form, functional form, in one standalone file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncc.emit.chosen import with_numbers
from attncc.emit.finish import Finishing
from attncc.emit.functional import FunctionalForm
from attncc.emit.header import derivation, digest, docstring, header
from attncc.emit.imports import with_imports
from attncc.emit.operands import Operands
from attncc.emit.render import render
from attncc.emit.torch_form.form import TorchForm
from attncc.emit.torch_form.library import library
from attncc.emit.torch_form.texts import PassTexts
from attncc.emit.triton_form.host import TritonForm
from attncc.emit.wide_values import wide_values
from attncc.graph.ops import Op
from attncc.plan.decoder import Decoder, decoder_of, keeps_blocks
from attncc.plan.model import Plan
from attncc.spec.choices import choices_of

if TYPE_CHECKING:
    from attncc.emit.torch_form.collapse import Collapse
    from attncc.emit.torch_form.listed import Listed


def emit_core(plan: Plan, branch: str = "", *, decodes: bool = True) -> Finishing:
    """The module's text, which is being formatted; the same for the same plan.

    Args:
        branch: the name of the branch that the plan is for, which its operators bear.
        decodes: whether the module decodes where the plan can.
    """
    text = render("module.py.jinja", _values(plan, branch, decodes=decodes))
    keeps = decodes and isinstance(decoder_of(plan), Decoder)
    for each in plan.chosen:
        for part, numbers in (("numbers", each.plan), ("among", each.among)):
            if numbers is not None:
                kept_as = f"{part} of {each.choice}" if keeps and keeps_blocks(numbers) else ""
                values = _values(numbers, branch, decodes=False, kernels=False, kept_as=kept_as)
                values |= {"numbers_alone": True, "weights_data": values["data"], "weights_arguments": values["data"]}
                values["gives_shares"] = each.of_shares and part == "numbers"
                own, of_choice = Finishing(text), Finishing(render("module.py.jinja", values))
                text = with_numbers(own.text(), each.choice, part, of_choice.text())
    return Finishing(with_imports(header(plan.spec, (("", plan),)), text))


def _values(plan: Plan, branch: str, *, decodes: bool, kernels: bool = True, kept_as: str = "") -> dict[str, object]:
    """What the template reads; texts are printed, numbers and flags decided elsewhere."""
    spec = plan.spec
    operands = Operands(spec, plan.core)
    torch_form = TorchForm(plan, operands)
    triton_form = TritonForm(plan)
    parts = torch_form.parts()
    triton_text = triton_form.kernel_text() if kernels else ""
    launchers = triton_form.launchers() if kernels else ""
    statistics = tuple(name for name in plan.torch.forward.outputs if name != "out")
    kept = (*statistics, "residual") if plan.reads_delta else statistics
    lse_index = 1 + statistics.index("lse") if plan.has_lse else 0
    texts = PassTexts(plan, operands, torch_form)
    functional = FunctionalForm(plan, operands, torch_form, texts, kept_as)
    decoder = decoder_of(plan)
    prologue = functional.prologue(decoder if isinstance(decoder, Decoder) and decodes else None)
    passes = texts.values()
    collapse = _collapse(plan, operands, torch_form)
    lists = _lists(plan, operands, torch_form, texts)
    interface = functional.values()
    used = (
        parts.used
        | torch_form.used
        | functional.used
        | triton_form.host_used
        | {"_reciprocal"}
        | ({"_table"} if "_table(" in launchers + parts.numbers else set())
    )
    helpers = library(frozenset(used))
    return {
        **passes,
        **interface,
        **wide_values(plan, operands, kept, triton_form.uniform()),
        "numbers_alone": False,
        "chooses": bool(plan.chosen) and kernels,
        "choice_names": tuple(each.name for each in choices_of(spec)),
        "gives_shares": False,
        "spec": spec,
        "derivation": derivation(plan.steps),
        "docstring": docstring(spec),
        "collapse": collapse,
        "lists": lists,
        "slabs_by": "(_slabs_with_runs if by_states else _slabs)" if collapse is not None else "_slabs",
        "by_states": ", by_states" if collapse is not None else "",
        "parts": parts,
        "slabs": plan.slabs,
        "triton_text": triton_text,
        "launchers": launchers,
        "prologue": prologue,
        "defers": functional.defers,
        "carries": triton_form.carried is not None,
        "makes": triton_form.carried is not None and bool(triton_form.carried.formulas),
        "library": helpers,
        "scale": "scale, " if spec.reads_scale else "",
        "statistics": statistics,
        # What forward returns beside `out`: row numbers, and what rounding took from `out`.
        "kept": kept,
        "kept_arguments": "".join(f"{name}, " for name in kept),
        "keep": ", keep_residual" if plan.reads_delta else "",
        "has_lse": plan.has_lse,
        "lse_index": lse_index,
        "d_lse": "d_lse, " if plan.has_lse else "",
        "d_lse_value": f"d_statistics[{lse_index - 1}], " if plan.has_lse else "",
        "reads_delta": plan.reads_delta,
        "hidden_statistics": ", ".join(
            f"output[{at + 1}]" for at, name in enumerate(kept) if name != "lse" or not plan.has_lse
        ),
        "number_count": 3 if spec.reads_scale else 2,
        "operator": "_".join(filter(None, (spec.name, branch, digest(spec)[:8]))),
        "schema_numbers": "float scale, " if spec.reads_scale else "",
        "schema_outputs": "Tensor" if not kept else f"({', '.join(['Tensor'] * (1 + len(kept)))})",
        "schema_kept": "".join(f"Tensor {name}, " for name in kept),
        "reach": _reach(plan),
        # Sums over channels are loops, which a compiler would write out; the operator keeps them.
        "plain_when_compiled": not plan.torch.forward.find(Op.CHANNELS),
        "shifts": plan.depends_on_distance,
    }


def _collapse(plan: Plan, operands: Operands, form: TorchForm) -> Collapse | None:
    """What templates read of states; few plans have any, so that printers of these are imported for them alone."""
    if plan.states is None:
        return None
    from attncc.emit.torch_form.collapse import collapse_of

    return collapse_of(plan, operands, form)


def _lists(plan: Plan, operands: Operands, form: TorchForm, texts: PassTexts) -> Listed | None:
    """The same of lists."""
    if plan.lists is None:
        return None
    from attncc.emit.torch_form.listed import listed_of

    return listed_of(plan, operands, form, texts)


def _reach(plan: Plan) -> tuple[int, int] | None:
    """How far before and after a row its keys can lie, where both are bounded."""
    backs = [each.facts.reach_back for each in plan.domain.classes]
    aheads = [each.facts.reach_ahead for each in plan.domain.classes]
    if any(back is None for back in backs) or any(ahead is None for ahead in aheads):
        return None
    return max(back for back in backs if back is not None), max(ahead for ahead in aheads if ahead is not None)
