"""Specs → tables in Markdown: what each system relates and weighs, what it runs as, how that grows, and its source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile

from attncc.plan.choose import plan
from attncc.plan.describe import is_restricted
from attncc.plan.growth import growth, layer_growth, written
from attncc.plan.layers import plan_layer
from attncc.plan.model import Mixture, Plan, Planned
from attncc.spec.layers.model import Layer
from attncc.spec.model import Spec
from attncc.syntax import tree
from attncc.syntax.parse import parse

_WEIGHTS = ("score", "weight", "similarity", "normalize", "value")
_HEAD = ("spec", "pattern", "weight", "runs by", "grows as", "source")
_LONGEST = 72  # of a cell; the spec says the rest
_LAWS = (
    "split-union", "residue-layout", "compact-keys", "own-rows", "search-runs", "sort-by-key", "gather-keys",
    "list-tiles",
)  # fmt: skip


def systems_table(specs: Sequence[Spec | Layer]) -> str:
    """One row for each spec, in their order; `grows as` has the pairs that a head visits in long calls."""
    rows = [_HEAD, tuple("---" for _ in _HEAD), *map(_row, specs)]
    return "".join(f"| {' | '.join(each)} |\n" for each in rows)


def _row(spec: Spec | Layer) -> tuple[str, ...]:
    name = f"[`{spec.name}`]({spec.source.name})"
    if isinstance(spec, Spec):
        planned = plan(spec)
        cells = _meaning(spec)
        runs, grows = _runs(planned), written(growth(planned))
    else:
        layered = plan_layer(spec)
        meanings = [_meaning(core.spec) for core in spec.cores]
        cells = _joined(each[0] for each in meanings), _joined(each[1] for each in meanings)
        runs = _joined(_runs(each) for _, each in layered.cores) or "products"
        grows = written(layer_growth(layered))
    return name, *(each or "—" for each in cells), runs, grows, _source(spec)


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _meaning(spec: Spec) -> tuple[str, str]:
    """The pattern and the weight, as they are written."""
    (definition,) = (
        each
        for each in parse(spec.source).definitions
        if isinstance(each, tree.Attention) and each.name.text == spec.name
    )
    patterns, weights = _fields(definition.statements)
    branches = [each for each in definition.statements if isinstance(each, tree.Branch)]
    for each in branches:
        its_patterns, its_weights = _fields(each.statements)
        patterns += [f"{each.name.text}: {text}" for text in its_patterns]
        weights += [f"{each.name.text}: {', '.join(its_weights)}"] if its_weights else []
    pattern = "; ".join(_code(each) for each in patterns) or "all pairs"
    return pattern, "; ".join(_code(each) for each in weights) or "softmax"


def _fields(statements: Sequence[tree.Statement]) -> tuple[list[str], list[str]]:
    fields = {each.name.text: each for each in statements if isinstance(each, tree.Field)}
    patterns = [_text(fields["pattern"])] if "pattern" in fields else []
    return patterns, [f"{name} = {_text(fields[name])}" for name in _WEIGHTS if name in fields]


def _text(field: tree.Field) -> str:
    """A value in one line, without comments."""
    span = field.value.span
    lines = span.source.text.splitlines()[span.line - 1 : span.end_line]
    lines[-1] = lines[-1][: span.end_column - 1]
    lines[0] = lines[0][span.column - 1 :]
    return " ".join(" ".join(line.partition("#")[0] for line in lines).split())


def _code(text: str) -> str:
    short = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1].rstrip()}…"
    return f"`{short}`".replace("|", "\\|")


def _runs(planned: Planned) -> str:
    """What a plan makes of the pattern: the laws of its pieces and lists, states, ranges, or all pairs."""
    plans = [each for _, each in planned.branches] if isinstance(planned, Mixture) else [planned]
    return _joined(_runs_of(each) for each in plans)


def _runs_of(one: Plan) -> str:
    laws = {step.law for step in one.steps}
    if one.lists is not None:
        found = [law for law in _LAWS if law in laws] or ["list-tiles"]
    elif one.pieces is not None:
        found = [law for law in _LAWS if law in laws]
    else:
        found = ["ranges"] if is_restricted(one.domain) else ["all pairs"]
    found = ["states", *(each for each in found if each != "all pairs")] if one.states is not None else found
    return ", ".join(found + ["chosen keys"] * bool(one.chosen))


def _source(spec: Spec | Layer) -> str:
    """The papers that the comment above it names, or else what stands in brackets at its end."""
    above = spec.source.text.splitlines()[: spec.span.line - 1]
    lines = list(takewhile(lambda line: line.startswith("#"), reversed(above)))
    comment = " ".join(line.lstrip("# ") for line in reversed(lines))
    papers = dict.fromkeys(re.findall(r"arXiv (\d{4}\.\d{4,5})", comment))
    named = re.search(r"\(([^()]*)\)\.?$", comment)
    return ", ".join(f"[{each}](https://arxiv.org/abs/{each})" for each in papers) or (named[1] if named else "—")
