"""Each law where it fires and where it does not; that values stay the same is tested on whole modules."""

from __future__ import annotations

import pytest

from attncc.diagnostics import Source
from attncc.graph.build import build
from attncc.graph.ir import Graph, describe
from attncc.graph.ops import Op
from attncc.graph.tokens import split
from attncc.rewrite.engine import rewrite
from attncc.rewrite.laws import LAWS
from attncc.spec.resolve import load


def rewritten(body: str) -> tuple[Graph, list[str]]:
    """The graph of an attention with such a body after all laws, and the laws that fired."""
    graph, steps, _ = rewrite(build(split(load(Source("law.attn", f"attention law {{ {body} }}")))), LAWS)
    return graph, [step.law for step in steps]


FIRES = {
    "drop-division": ("similarity = relu2", "weight = relu(score); normalize = rows"),
    "defer-division": ("pattern = causal", "similarity = sigmoid"),
    "common-peak": ("score = softcap(scale * dot(q, k), 9)", "weight = exp(score); normalize = sqrt(rows)"),
}


@pytest.mark.parametrize("law", FIRES)
def test_a_law_fires_where_it_holds_and_only_there(law: str) -> None:
    yes, no = FIRES[law]
    assert law in rewritten(yes)[1]
    assert law not in rewritten(no)[1]


def test_every_law_has_a_case() -> None:
    assert {law.name for law in LAWS} == set(FIRES)


def test_division_waits_for_the_sum() -> None:
    graph, _ = rewritten("pattern = causal")
    assert describe(graph["out"]) == "total / norm"
    assert [node.name for node in graph.find(Op.CONTRACT)] == ["total"]


@pytest.mark.parametrize(
    ("normalize", "start"),
    [("rows", ""), ("rows + 1", ", at least 0"), ("max(rows, 0.5)", ", at least log(0.5)"), ("3 * rows", "")],
)
def test_constants_of_the_normaliser_take_part_in_the_peak(normalize: str, start: str) -> None:
    graph, _ = rewritten(f"weight = exp(score); normalize = {normalize}")
    assert describe(graph["peak"]) == f"max over j of exponent_kept{start}"


def test_terms_without_exponential_growth_are_lowered_too() -> None:
    graph, _ = rewritten("weight = exp(score) + 1; normalize = rows")
    assert describe(graph["peak"]).endswith("at least 0")
    assert describe(graph["weight"]) == "exp(exponent_1_kept - peak) + exp(-peak)"
