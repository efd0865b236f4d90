"""Plan → module: that of a core, or for several branches one module in which what they share stands once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from attncc.emit.finish import Finishing
from attncc.emit.functional import choice_words
from attncc.emit.header import derivation, docstring, header
from attncc.emit.imports import with_imports
from attncc.emit.module import emit_core
from attncc.emit.prologue.arguments import Arguments, before_and_behind, declared, named
from attncc.emit.prologue.derive import CombinedOutputs
from attncc.emit.render import render
from attncc.emit.torch_form.library import library
from attncc.emit.units import Unit, laid_out, renamed, shared, units_of
from attncc.plan.decoder import Decoder, decoders_of
from attncc.plan.model import Mixture, Plan, Planned
from attncc.spec.choices import choices_of
from attncc.spec.data import Make, Size
from attncc.spec.expr import Merge, walk
from attncc.spec.model import Align, Spec
from attncc.spec.text import text as spec_text

_PUBLIC = re.compile(r"\bCache\b|\b(?:attention|prefill|step)(?=\()")  # what decoding calls of a branch's own module


@dataclass(frozen=True, slots=True)
class Call:
    """How a branch is called for its output."""

    name: str
    function: str
    data: str
    step_data: str  # and its cache
    reads_scale: bool
    gives_lse: bool
    has_states: bool
    cache: str  # the class of its cache
    reads_length: bool
    choices: tuple[str, ...]


def emit_cores(plan: Planned) -> Finishing:
    """The module's text but for its kernels in C, which is being formatted; the same for the same plan."""
    return _emit_branches(plan) if isinstance(plan, Mixture) else emit_core(plan)


def _emit_branches(mixture: Mixture) -> Finishing:
    decoders = decoders_of(mixture)
    decodes = not isinstance(decoders, str)
    begun = [emit_core(plan, name, decodes=decodes) for name, plan in mixture.branches]
    parts = [units_of(each.text()) for each in begun]
    taken = {name for units in parts for unit in units for name in unit.names}
    called = {name: f"_{name}" if f"_{name}" not in taken else f"_{name}_branch" for name, _ in mixture.branches}
    modules = [_private(units, called[name]) for units, (name, _) in zip(parts, mixture.branches, strict=True)]
    alike = shared(modules) if len(modules) > 1 else frozenset()
    every = {unit.names: unit for units in modules for unit in units if unit.names}
    common = [unit for names, unit in every.items() if alike.issuperset(names)]
    once = [name for units in modules for unit in units for name in unit.names]
    clashing = frozenset(name for name in once if once.count(name) > 1) - alike
    sections = [heading("what the branches share"), laid_out(common)] if common else []
    for (name, plan), units in zip(mixture.branches, modules, strict=True):
        own = [unit for unit in units if not (unit.names and alike.issuperset(unit.names))]
        sections += _section(name, plan, own, clashing)
    combined = CombinedOutputs(mixture)
    function = combined.text()
    arguments = Arguments(mixture.spec)
    left = {each.name for each in mixture.spec.data} - {
        each.name for _, plan in mixture.branches for each in plan.spec.data
    }
    makers = {each.maker.make for each in mixture.spec.data if each.maker is not None}
    used = combined.used | ({"_expect_data"} if left else set()) | ({"_random"} if makers else set())
    used |= {{Make.RANDOM: "_some_of", Make.NORMAL: "_normal"}[each] for each in makers}
    known = set(once) - clashing
    helpers = [unit for unit in units_of(library(frozenset(used))) if known.isdisjoint(unit.names)]
    values = _values(mixture, arguments, combined.outputs, called, None if isinstance(decoders, str) else decoders)
    values |= {"sections": "\n\n\n".join(sections), "helpers": laid_out(helpers), "function": function}
    values["checks"] = arguments.checks_of(left)
    return Finishing(with_imports(header(mixture.spec, mixture.branches), render("combined.py.jinja", values)))


def _private(units: Sequence[Unit], called: str) -> list[Unit]:
    """A branch's units, with its functional form under the branch's name; its module is that of all branches."""
    names = {"attention": called, "weights": f"{called}_weights", "Cache": cache_name(called)}
    names |= {name: f"{called}_{name}" for name in ("prefill", "step")}
    found = []
    for unit in units:
        match unit.names:
            case ("Attention",):
                continue
            case ("attention" | "weights" as name,):
                text = unit.text.replace(f"def {name}(", f"def {names[name]}(", 1)
                found.append(Unit((names[name],), text, unit.is_kernel))
            case ("Cache" | "prefill" | "step" as name,):
                text = _PUBLIC.sub(lambda match: names[match[0]], unit.text)
                found.append(Unit((names[name],), text, unit.is_kernel))
            case _:
                found.append(unit)
    return found


def cache_name(called: str) -> str:
    """The class of a branch's cache: `_near_keys` → `_NearKeysCache`."""
    return f"_{''.join(part.capitalize() for part in called.split('_'))}Cache"


def _section(branch: str, plan: Plan, units: Sequence[Unit], clashing: frozenset[str]) -> list[str]:
    """What is a branch's own, under names of its own where other branches have the same."""
    names = {name: f"_{branch}{name}" for name in clashing}
    title = heading(f"the branch `{branch}`: {spec_text(plan.spec.pattern)}")
    texts = laid_out([replace(unit, text=renamed(unit.text, names)) for unit in units])
    return [f"{title}\n{derivation(plan.steps)}", texts]


def _names_of_choices(spec: Spec) -> tuple[str, ...]:
    return tuple(each.name for each in choices_of(spec))


def heading(text: str) -> str:
    """The line above a section."""
    return f"# --- {text} ".ljust(100, "-")


def _values(
    mixture: Mixture,
    arguments: Arguments,
    outputs: Sequence[str],
    called: Mapping[str, str],
    decoders: Mapping[str, Decoder] | None,
) -> dict[str, object]:
    spec = mixture.spec
    assert spec.combine is not None
    merged = {name for node in walk(spec.combine) if isinstance(node, Merge) for name in node.branches}
    sizes = arguments.sizes
    with_length = {name for name, each in (decoders or {}).items() if each.reads_length}
    return {
        "choices": _names_of_choices(spec),
        "choice_words": choice_words(choices_of(spec)),
        "decodes": decoders is not None,
        "reads_length": bool(with_length),
        "signature": ", ".join(map(declared, spec.data)),
        "step_signature": ", ".join(before_and_behind(spec.data, "cache: Cache", declared)),
        "forms": not with_length,
        "spec": spec,
        "docstring": docstring(spec),
        "data": [each.name for each in spec.data],
        "declared_data": list(map(declared, spec.data)),
        "made": arguments.made(),
        "needed_pairs": named(each for each in spec.data if each.maker is None),
        "data_words": arguments.words(),
        "calls": [
            Call(
                name,
                called[name],
                ", ".join(each.name for each in plan.spec.data),
                ", ".join(before_and_behind(plan.spec.data, f"carried.{name}", lambda each: each.name)),
                plan.spec.reads_scale,
                name in merged,
                plan.states is not None,
                cache_name(called[name]),
                name in with_length,
                _names_of_choices(plan.spec),
            )
            for name, plan in mixture.branches
        ],
        "outputs": outputs,
        "alike": [name for name, _ in mixture.branches if name in outputs],
        "has_lse": isinstance(spec.combine, Merge),
        "has_states": any(plan.states is not None for _, plan in mixture.branches),
        "combine": spec_text(spec.combine),
        "rows": arguments.rows.name,
        "batch": sizes[Size.BATCH],
        "width": sizes[Size.WIDTH],
        "default_start": "0" if spec.align is Align.START else f"k_start + {sizes[Size.KEYS]} - {sizes[Size.QUERIES]}",
        "default_start_words": "0" if spec.align is Align.START else "so that rows and keys end together",
        "attention_class": arguments.module(None if decoders is None else Decoder(reads_length=bool(with_length))),
    }
