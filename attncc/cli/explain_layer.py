"""The plan of a layer → what `explain` tells of it: values with their shapes, laws, and each core."""

from __future__ import annotations

from typing import Any

from attncc.cli.render import table
from attncc.plan.decoder import decoder_of, decoders_of
from attncc.plan.describe import cost_sentence, decoder_sentence, plan_sentence
from attncc.plan.layers import LayerPlan
from attncc.plan.look_ahead import is_causal
from attncc.plan.model import Mixture, Planned
from attncc.plan.token_by_token import OF_BLOCKS
from attncc.spec.layers.text import text


def explain_layer(plan: LayerPlan) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    layer = plan.layer
    return {
        "name": layer.name,
        "spec": layer.source.name,
        "summary": layer.summary,
        "kind": "layer",
        "parameters": {each.name: each.value for each in layer.parameters},
        "fixed": [each.name for each in layer.parameters if each.fixed],
        "inputs": [{"name": each.name, "shape": str(each.type)} for each in layer.inputs],
        "learned": [
            {
                "name": each.name,
                "shape": str(each.type),
                "first": each.draw.value if each.draw else None,
                "fixed": each.is_fixed,
            }
            for each in layer.learned
        ],
        "values": [{"name": name, "shape": str(node.type), "is": text(node)} for name, node in layer.values],
        "derivation": [
            {"law": each.law, "statement": each.statement, "before": list(each.before), "after": list(each.after)}
            for each in plan.steps
        ],
        "causal": plan.is_causal,
        "step": plan.decoding or None,
        "cores": {name: _core(planned, of_blocks=name in plan.of_blocks) for name, planned in plan.cores},
    }


def _core(planned: Planned, *, of_blocks: bool) -> dict[str, Any]:
    plans = planned.branches if isinstance(planned, Mixture) else (("", planned),)
    found = decoders_of(planned) if isinstance(planned, Mixture) else decoder_of(planned)
    return {
        "parameters": {each.name: each.value for each in planned.spec.parameters},
        "plans": {name: plan_sentence(each.domain, each.pieces, each.lists) for name, each in plans},
        "costs": {name: cost_sentence(each) for name, each in plans},
        "causal": is_causal(planned),
        "decoder": OF_BLOCKS if of_blocks else "of each branch" if isinstance(found, dict) else decoder_sentence(found),
    }


def layer_text(found: dict[str, Any]) -> str:
    """The same for people."""
    lines = [found["name"], f"  {found['summary']}" if found["summary"] else "", ""]
    if found["parameters"]:
        lines.append("Parameters")
        for name, value in found["parameters"].items():
            fixed = ", known when the file is built" if name in found["fixed"] else ""
            lines.append(
                f"  {name} = {value}{fixed}" if value is not None else f"  {name}: given when a module is made"
            )
        lines.append("")
    rows = [("input", each["name"], each["shape"], "") for each in found["inputs"]]
    rows += [
        ("buffer", each["name"], each["shape"], f"is {each['first']}, and stays")
        if each["fixed"]
        else ("param", each["name"], each["shape"], f"begins as {each['first']}")
        for each in found["learned"]
    ]
    rows += [("", each["name"], each["shape"], each["is"]) for each in found["values"]]
    lines += ["Values", *(f"  {line}" for line in table(rows).splitlines()), ""]
    if found["derivation"]:
        lines.append("Derivation")
        for each in found["derivation"]:
            lines.append(f"  {each['law']}: {each['statement']}")
            lines += [f"      {line}" for line in each["before"]]
            lines += [f"    → {line}" for line in each["after"]]
        lines.append("")
    lines.append("Proven")
    lines.append("  causal: no token reads a later one" if found["causal"] else "  not causal, or not proven to be")
    lines.append("  token by token: `step` and `prefill`" if found["step"] is None else f"  no step: {found['step']}")
    for name, core in found["cores"].items():
        values = ", ".join(f"{one} = {value}" for one, value in core["parameters"].items())
        lines += ["", f"Core {name}" + (f" ({values})" if values else "")]
        for branch, sentence in core["plans"].items():
            of = f" of `{branch}`" if branch else ""
            lines += [f"  plan{of}: {sentence}", f"  cost{of}: {core['costs'][branch]}"]
        lines.append(f"  decoder: {core['decoder']}")
    return "\n".join(line.rstrip() for line in lines if line is not None)
