"""Every operator of layers, alone and together, against its dense meaning; padding, causality, decoding, laws."""

from __future__ import annotations

import pytest
import torch

from attncc.check.layers.compare import check_layer
from attncc.check.load import load_module
from attncc.diagnostics import AttnError
from attncc.spec.layers.operators import OPERATORS
from tests.layers.shared import checked, compiled, layer_of
from tests.layers.test_sequence import SEEN

BODIES = {
    "layer_norm": "param g[dim], b[dim]; out = layer_norm(x, g, b)",
    "rms_norm": "param g[dim]; out = rms_norm(x, g) + rms_norm(x)",
    "l2_norm": "out = l2_norm(x)",
    "scale_norm": "param g[1] = ones; out = scale_norm(x, g)",
    "softmax": "out = softmax(x, over = n) + softmax(x, over = features)",
    "sum": "out = x * sum(x, over = n)",
    "mean": "out = x - mean(x, over = n)",
    "max": "out = x * max(x, over = n)",
    "transposed": "out = transposed(transposed(x) @ x) @ transposed(x)",
    "heads": "param W[dim, dim]; out = merge(heads(x @ W, 2) * 2)",
    "merge": "out = merge(rms_norm(heads(x, 2)))",
    "concat": "out = concat(x, relu(x), x * 2)",
    "part": "out = part(x, 1, 2) * part(x, 0, 2)",
    "slice": "out = slice(x, 1, 3)",
    "first": "param E[5, 96]; out = first(E, n) @ x",
    "pool": "out = pool(x, 4)",
    "repeat": "out = repeat(x, 3)",
    "shift": "out = shift(x, 1) + shift(x, 3)",
    "rope": "out = rope(x, base = 100)",
    "rope_pairs": "out = merge(rope_pairs(heads(x, 2)))",
    "top": "y = gather(x, top(sum(x, over = features), 5, always = 2)); out = y * mean(pool(y, 2), over = "
    "ceil(min(n, 5) / 2))",
    "gather": "out = merge(gather(heads(x, 2), top(sum(abs(x), over = features), 7)))",
    "log_sums": "a = attend full_core(x, x, x); out = transposed(transposed(a) * sigmoid(log_sums(a)))",
    "column_sums": "y = heads(x, 2); a = attend causal_core(relu(y), y, y, scale = 0.5); "
    "out = transposed(transposed(merge(a)) * sum(column_sums(a, own = 0) * column_sums(a), over = 2))",
    "block_sums": "a = attend full_core(x, x, x); out = block_sums(a, 4, 3) @ pool(x, 3)",
    "pooled keys": "y = pool(x, 4); out = attend full_core(x, y, y)",
    "pooled twice": "y = mean(pool(pool(x, 3), 2), over = ceil(ceil(n / 3) / 2)); out = x * y",
    "one head and several": "param W[dim, 2 * dim]; out = merge(attend full_core(heads(x @ W, 2), x, x))",
    "two cores": "out = attend full_core(attend causal_core(x, x, x), x, x)",
    "the same core twice": "y = attend causal_core(x, x, x); out = attend causal_core(y, y, y)",
    "first token": "out = x[0]",
    "functions": "out = silu(x) + gelu(x) * tanh(x) - max(x, 0) / (1 + exp(-x)) + abs(x) ^ 2 + elu(min(x, 1, 2))",
    "words": "function double(y, by = 2) = by * y\nout = double(x) + double(x, by = 3)",
    "lengths as numbers": "c = dim / 2; out = x * sqrt(c) / n",
    "scale by name": "out = attend full_core(x, x, x, scale = 1 / sqrt(2 * dim))",
}


BODIES_OF_INPUTS = {
    "rows by truth values": ("x[n, dim], mark[n]: bool", "out = (mark ? 2 * x : relu(x)) + x"),
    "heads by truth values": ("x[n, dim], mark[n]: bool", "out = merge(mark ? heads(x, 2) : heads(tanh(x), 2))"),
    "keys that no token makes": ("x[n, dim]", "param K[5, dim]; out = attend full_core(x, K, tanh(K))"),
    "places that the caller names": ("x[n, dim], kept[3]: int", "out = gather(x, kept) * 2"),
    "names beside those of the spec": (
        "x[n, dim]",
        "a_q = x; a = attend full_core(x * 3, x, x); t = transposed(a_q) * sigmoid(log_sums(a)); out = transposed(t)",
    ),
    "fixed": ("x[n, dim]", "param R[dim, 4] = fixed(normal(0.5)), W[4, dim]; out = tanh(x @ R) @ W"),
    "columns of another sequence": (
        "x[n, dim], y[m, dim]",
        "a = attend full_core(x, y, y); out = transposed(column_sums(a) * transposed(y))",
    ),
    "logs of heads": (
        "x[n, dim], y[m, dim]",
        "z = heads(y, 2); a = attend full_core(heads(x, 2), z, z); out = sigmoid(log_sums(a)) @ x",
    ),
}


def test_every_operator_has_a_case() -> None:
    assert OPERATORS.keys() <= BODIES.keys() | SEEN.keys()


@pytest.mark.parametrize("name", BODIES)
def test_it_equals_its_meaning(name: str) -> None:
    body = BODIES[name]
    words, _, rest = body.partition("\n") if body.startswith("function") else ("", "", body)
    report = checked(f"{words}\n{layer_of(rest)}" if words else layer_of(rest))
    assert report.ok, "\n".join(report.failures)


@pytest.mark.parametrize("name", BODIES_OF_INPUTS)
def test_with_other_inputs_it_equals_its_meaning(name: str) -> None:
    inputs, body = BODIES_OF_INPUTS[name]
    report = checked(layer_of(body, inputs=inputs))
    assert report.ok, "\n".join(report.failures)


def test_padding_is_never_read() -> None:
    """Whatever stands in padded tokens, the others come out the same."""
    found = compiled(layer_of("y = x * mean(x, over = n) + softmax(x, over = n); out = attend full_core(y, y, y)"))
    module = load_module(found.text, "written").Written(dim=6).double()
    x, lengths = torch.randn(2, 9, 6, dtype=torch.float64), torch.tensor([9, 4])
    other = x.clone()
    other[1, 4:] = 1e6
    torch.testing.assert_close(module(x, lengths)[1, :4], module(other, lengths)[1, :4])
    torch.testing.assert_close(module(x, lengths)[1, :4], module(x[1:, :4])[0])


def test_products_are_taken_in_the_order_that_costs_least() -> None:
    found = compiled(layer_of("q = x @ W; out = q @ transposed(x) @ x", inputs="x[n, dim]\nparam W[dim, dim]"))
    (step,) = found.plan.steps
    assert step.law == "order-chain"
    assert (step.before, step.after) == (("q @ transposed(x) @ x",), ("q @ (transposed(x) @ x)",))
    assert "q @ (_without_padding(x, -2, lengths).mT" in found.text or "x.mT @" in found.text
    assert checked(layer_of("q = x @ W; out = q @ transposed(x) @ x", inputs="x[n, dim]\nparam W[dim, dim]")).ok


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("lengths.clamp(1, ", "lengths.clamp(2, "),
        (".softmax(axis).masked_fill(padding, 0)", ".softmax(axis)"),
        ("x.masked_fill(_padding(x, axis, lengths), 0)", "x"),
        ("kv_lengths=lengths, ", ""),
    ],
)
def test_a_wrong_module_is_found(right: str, wrong: str) -> None:
    body = "y = x * mean(x, over = n) + softmax(x, over = n); out = attend full_core(y, y, y) + softmax(x, over = n)"
    found = compiled(layer_of(body))
    assert right in found.text
    module = load_module(found.text.replace(right, wrong), "written")
    assert not check_layer(module, found.plan, ("torch",), quick=True).ok


def test_cross_attention_has_lengths_for_each_sequence() -> None:
    text = layer_of("out = attend full_core(x, y, y)", inputs="x[n, dim], y[m, dim]")
    assert checked(text).ok
    assert "m_lengths: Tensor | None = None" in compiled(text).text


def test_what_a_core_learns_is_a_parameter_of_the_layer() -> None:
    core = "attention sunk { param sink[H] = 0.5; normalize = rows + exp(sink[h]) }\n"
    text = core + "layer written(dim, h = 2) { input x[n, dim]; y = heads(x, h); out = merge(attend sunk(y, y, y)) }"
    module = load_module(compiled(text).text, "written").Written(dim=6)
    assert {name: each.tolist() for name, each in module.named_parameters()} == {"sink": [0.5, 0.5]}
    assert checked(text).ok
    named = core + "layer written(dim) { input x[n, dim]; param s[1]; out = attend sunk(x, x, x, sink = s) }"
    assert checked(named).ok


def test_parameters_of_cores_are_known_when_the_file_is_built() -> None:
    core = "attention near(w = 4) { pattern = window(w) }\n"
    text = core + "layer written(dim, w = 3) { input x[n, dim]; out = attend near(x, x, x, w = w + 1) * w }"
    assert checked(text).ok
    found = compiled(text, ("w", "7"))
    assert found.spec.core("near").spec.parameters[0].value == 8
    assert "w: int" not in found.text.partition("class Written")[2]


def test_a_module_refuses_what_does_not_fit() -> None:
    found = compiled(layer_of("require h > 1; out = merge(heads(x, h))", parameters="dim, h = 2"))
    made = load_module(found.text, "written").Written
    with pytest.raises(ValueError, match="dim is 7, expected a multiple of h, 2"):
        made(dim=7)
    with pytest.raises(ValueError, match="written: h is 1, expected h > 1"):
        made(dim=6, h=1)
    with pytest.raises(ValueError, match=r"written: x is \[2, 5\], expected \[batch, n, 6\]"):
        made(dim=6)(torch.randn(2, 5))
    cut = compiled(layer_of("out = slice(x, k, 3)", parameters="dim, k = 2"))
    with pytest.raises(ValueError, match=r"written: dim, k is \[4, 2\], expected k \+ 3 <= dim"):
        load_module(cut.text, "written").Written(dim=4)
    with pytest.raises(AttnError, match="`part` reads beyond the axis"):
        compiled(layer_of("out = part(concat(x, x), 2, 2) + slice(relu(x), 0, 1) * 0"))
    longest = compiled(layer_of("param E[5, 8]; out = first(E, n) @ x"))
    with pytest.raises(ValueError, match="the length is 9, expected at most 8"):
        load_module(longest.text, "written").Written(dim=6)(torch.randn(1, 9, 6))


def test_first_values() -> None:
    body = "param W[dim, 8], g[dim], b[dim], z[3] = normal(0.1), u[3] = uniform(0.2), c[3] = -2, V[dim, dim] = xavier"
    text = layer_of(
        f"{body}\nout = (layer_norm(x, g, b) @ V) * (x @ W @ transposed(W)) * sum(z * u * c, over = features)"
    )
    module = load_module(compiled(text).text, "written").Written(dim=64)
    parameters = {name: each.detach() for name, each in module.named_parameters()}
    assert (parameters["g"] == 1).all() and (parameters["b"] == 0).all() and (parameters["c"] == -2).all()
    assert 0.1 < float(parameters["W"].abs().max()) <= 64**-0.5
    assert 0.15 < float(parameters["V"].abs().max()) <= (6 / 128) ** 0.5
    assert float(parameters["u"].abs().max()) <= 0.2 and 0 < float(parameters["z"].abs().max()) < 0.6


def test_an_operator_along_the_sequence_has_no_step() -> None:
    reason = compiled(layer_of("y = attend causal_core(x, x, x); out = y * mean(y, over = n)")).plan.decoding
    assert reason == "`mean` works along the sequence"
    assert compiled(layer_of("out = attend causal_core(rope(x), rope(x), x)")).plan.decoding == ""


def test_a_mistake_in_a_core_is_told_with_its_place() -> None:
    with pytest.raises(AttnError, match=r"E201.*windw") as caught:
        compiled("attention a { pattern = windw(3) }\nlayer b(dim) { input x[n, dim]; out = attend a(x, x, x) }")
    assert caught.value.diagnostics[0].labels[0].span.line == 1


FEED_FORWARD = """layer feed_forward(dim, hidden = 4 * dim) {
input x[n, dim]
param W[dim, hidden], gain[hidden], V[hidden, dim]
out = layer_norm(relu(x @ W), gain) @ V
}
"""


def test_layers_call_layers() -> None:
    text = FEED_FORWARD + layer_of(
        "y = attend causal_core(x, x, x); z = feed_forward(y, hidden = 2 * dim); out = feed_forward(z) + x"
    )
    found = compiled(text)
    assert [(each.name, str(each.type)) for each in found.spec.learned] == [
        ("feed_forward.W", "[dim, 2 * dim]"),
        ("feed_forward.gain", "[2 * dim]"),
        ("feed_forward.V", "[2 * dim, dim]"),
        ("feed_forward_2.W", "[dim, 4 * dim]"),
        ("feed_forward_2.gain", "[4 * dim]"),
        ("feed_forward_2.V", "[4 * dim, dim]"),
    ]
    assert found.spec.name == "written" and found.plan.decoding == ""
    assert "feed_forward_2_x" not in found.text
    assert checked(text).ok


def test_calls_in_calls_are_numbered_as_they_run() -> None:
    found = compiled(FEED_FORWARD + layer_of("out = feed_forward(feed_forward(x, hidden = dim)) + x"))
    shapes = {each.name: str(each.type) for each in found.spec.learned}
    assert shapes["feed_forward.W"] == "[dim, dim]" and shapes["feed_forward_2.W"] == "[dim, 4 * dim]"


def test_a_called_layer_has_cores_of_its_own_size() -> None:
    body = "input x[n, dim]; y = heads(x, h); out = merge(attend near(y, y, y, w = w))"
    inner = f"layer near_heads(dim, w, h = 2) {{ {body} }}\n"
    text = "attention near(w = 4) { pattern = window(w) }\n" + inner
    text += "layer written(dim, w = 3) { input x[n, dim]; out = near_heads(near_heads(x, w = w), w = 2 * w) }"
    found = compiled(text)
    assert [each.spec.parameters[0].value for each in found.spec.cores] == [3, 6]
    assert checked(text).ok


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("out = feed_forward(x, wide = 3)", "E404"),
        ("out = feed_forward()", "E404"),
        ("out = feed_forward(x, x)", "E404"),
        ("out = feed_forward(x, dim = 3)", "E404"),
        ("out = feed_forward(heads(x, 2))", "E404"),
    ],
)
def test_calls_of_layers_that_do_not_fit(body: str, code: str) -> None:
    with pytest.raises(AttnError) as caught:
        compiled(FEED_FORWARD + layer_of(body))
    assert {each.code for each in caught.value.diagnostics} == {code}, caught.value


def test_a_layer_does_not_call_itself() -> None:
    with pytest.raises(AttnError, match="E213"):
        compiled("layer a(dim) { input x[n, dim]; out = a(x) }")


DATA = {
    "documents": (
        "attention core { input doc[B, m]: int; pattern = causal & doc[i] == doc[j] }",
        "x[n, dim], doc[n]: int",
        "attend core(x, x, x, doc)",
    ),
    "a padding mask": (
        "attention core { input pad[B, m]: bool; pattern = !pad }",
        "x[n, dim], pad[n]: bool",
        "attend core(x, x, x, pad)",
    ),
    "gates of keys": (
        (
            "attention core { input g[B, H, m]; let G = cumsum(min(g, 0)); weight = exp(G[i] - G[j]) * dot(q, k); "
            "normalize = none; pattern = causal }"
        ),
        "x[n, dim], g[n]",
        "attend core(x, x, x, g)",
    ),
    "gates of keys in heads": (
        (
            "attention core { input g[B, H, m]; let G = cumsum(min(g, 0)); weight = exp(G[i] - G[j]) * dot(q, k); "
            "normalize = none; pattern = causal }"
        ),
        "x[n, dim], g[2, n]",
        "merge(attend core(heads(x, 2), heads(x, 2), heads(x, 2), g))",
    ),
    "a matrix that is learned": (
        "attention core { param W[H, d, 4]; score = scale * dot(q @ W[h], k) + 0 }",
        "x[n, 4], y[m, 4]",
        "attend core(x, y, y)",
    ),
    "pooled keys of a core": (
        "attention core { let k = pool(k, 4) at 4 * j + 3; let v = pool(v, 4) at 4 * j + 3; pattern = causal | j < 4 }",
        "x[n, dim]",
        "attend core(x, x, x)",
    ),
    "branches": (
        (
            "attention core(c = 5) { input q2[B, H, n, d]; branch near { pattern = causal & chunk(c) }; "
            "branch far { pattern = earlier_chunks(c); weight = dot(q2, k); normalize = none }; combine = near + far }"
        ),
        "x[n, dim]",
        "attend core(x, x, x, x * 2)",
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_cores_take_what_they_declare(name: str) -> None:
    core, inputs, body = DATA[name]
    report = checked(f"{core}\nlayer written(dim) {{ input {inputs}; out = {body} }}")
    assert report.ok, "\n".join(report.failures)
