"""Operators along the sequence, on maps and in loops: their meaning, what is causal, and token by token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attncc.check.load import load_module
from attncc.diagnostics import AttnError
from tests.layers.shared import checked, compiled, layer_of

BODIES = {
    "convolve": "param W[3, dim, 4]; out = convolve(x, W)",
    "convolve with a stride": (
        "param W[3, dim, 4], V[4, 4, 4]; out = convolve(convolve(x, W, stride = 3), V, stride = 2)"
    ),
    "convolve with a wide stride": "param W[1, dim, 4]; out = convolve(x, W, stride = 2)",
    "depthwise": "param W[5, dim], b[4, 1]; out = depthwise(x, W) + depthwise(x, b, before = 1)",
    "depthwise in heads": "param W[2, 4, 1]; out = merge(depthwise(heads(x, 2), W, stride = 2))",
    "causal convolutions": (
        "param W[k, dim, dim], V[4, dim]; y = convolve(x, W, before = k - 1) + depthwise(x, V, before = 3); "
        "out = attend causal_core(y, y, y)"
    ),
    "running_sum": "out = attend causal_core(x, running_sum(x), x)",
    "running_mean": "out = running_mean(x) + running_mean(attend causal_core(x, x, x))",
    "ema": "param a[dim, 3], w[dim, 3]; out = ema(x, sigmoid(a), w) + merge(ema(heads(x, 1), sigmoid(a), w))",
    "ema_back": "param a[dim, 1], w[dim, 1]; out = ema_back(x, sigmoid(a), w)",
    "pool_max": "out = unpool(pool_max(x, 4), 4) + mean(pool_max(heads(x, 1), 3)[0], over = ceil(n / 3))",
    "unpool": "out = x + unpool(pool(x, 3), 3) + unpool(unpool(pool(pool(x, 2), 3), 3), 2)",
    "segments": "out = x @ transposed(segments(x, 5)) @ segments(x, 5)",
    "present": "out = x * present(x) + segments(present(x), 4)[0]",
    "identity": "param W[dim, dim]; out = x @ (W + 3 * identity(dim))",
    "iterate": "param W[dim, dim]; out = x @ iterate(z -> 0.5 * z @ (z - W @ (z @ W)), W, times = 3)",
    "loops over tokens": "out = iterate(z -> tanh(z + shift(z, 1) + attend causal_core(z, z, z)), x, times = 2)",
    "a loop in a loop": "out = x + iterate(z -> iterate(u -> u * z, z, times = 2), x, times = t) * 0.1",
    "over the batch": "out = x / (1 + max(sum(abs(x), over = n), over = B)) + mean(x, over = n) * sum(x[0], over = B)",
    "sinusoids": "out = attend causal_core(x, x + sinusoids(x), x + sinusoids(heads(x, 1), closed = 1))",
    "column": "out = merge(heads(x, 2) * column(column(mean(mean(heads(x, 2), over = n), over = features))))",
    "stack": "out = merge(stack(x, x * 2, x ^ 2))",
    "shifts": "y = shift(x, 2) + shift(x); out = attend causal_core(y, y, shift(y, 3))",
    "closed rotation": ("y = heads(x, 1); out = attend causal_core(rope_pairs(y, closed = 1), rope(y, closed = 1), x)"),
}
MAPS = {
    "convolve_2d": "param W[2, dim, 3, 5]; out = convolve_2d(x, W)",
    "convolve_2d with a stride": "param W[2, dim, 4, 2]; out = convolve_2d(x, W, stride = 2)",
    "batch_norm": (
        "param g[dim], b[dim], mean_of[dim], variance_of[dim]; "
        "out = batch_norm(x, g, b, mean_of, variance_of, channels = dim)"
    ),
    "means of maps": "out = x * sigmoid(mean(mean(x, over = m), over = n) @ identity(dim))[0]",
}
SEEN = BODIES | MAPS


@pytest.mark.parametrize("name", BODIES)
def test_it_equals_its_meaning(name: str) -> None:
    report = checked(layer_of(BODIES[name], parameters="dim, k = 3, t = 2"))
    assert report.ok, "\n".join(report.failures)


@pytest.mark.parametrize("name", list(MAPS)[:3])
def test_maps_equal_their_meaning(name: str) -> None:
    report = checked(layer_of(MAPS[name], inputs="x[dim, n, m]"))
    assert report.ok, "\n".join(report.failures)


BY_RANK = "let s = rank(hash(k, R[h]));"
TOKEN_BY_TOKEN = ("causal convolutions", "running_sum", "running_mean", "ema", "sinusoids", "shifts", "closed rotation")


@pytest.mark.parametrize("name", BODIES)
def test_what_keeps_a_few_tokens_works_token_by_token(name: str) -> None:
    """`checked` compares `step` with the forward pass; here, that there is one."""
    decoding = compiled(layer_of(BODIES[name], parameters="dim, k = 3, t = 2")).plan.decoding
    assert (decoding == "") == (name in TOKEN_BY_TOKEN), decoding


def test_a_cache_keeps_a_few_tokens_and_moves_with_its_parts() -> None:
    body = "param W[3, dim, dim], a[dim, 4], w[dim, 4]; out = shift(convolve(x, W, before = 2), 2) + ema(x, a * a, w)"
    module = load_module(compiled(layer_of(body)).text, "written").Written(dim=6)
    _, cache = module.prefill(torch.randn(2, 50, 6))
    sizes = {name: list(getattr(cache, name).shape) for name in ("convolved", "moved", "averaged")}
    assert sizes == {"convolved": [2, 2, 6], "moved": [2, 2, 6], "averaged": [2, 6, 4]}
    assert all(getattr(cache, name).untyped_storage().nbytes() <= 4 * 48 for name in sizes)
    with pytest.raises(ValueError, match=r"written: x is \[2, 1, 5\], expected \[batch, n, 6\]"):
        module.step(torch.randn(2, 1, 5), cache)
    assert cache.to("cpu").position == 50 and torch.equal(cache.to("cpu").moved, cache.moved)


CAUSAL = {
    "a convolution that looks ahead": ("convolve(x, W)", "`convolve` along the sequence comes before the causal core"),
    "a moving average back": ("ema_back(x, a, a)", "`ema_back` along the sequence"),
    "segments": ("x + segments(x, 1)", "`segments` along the sequence"),
    "a loop that looks ahead": ("iterate(z -> convolve(z, W), x, times = 2)", "`convolve` along the sequence"),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_what_looks_ahead_is_refused_before_a_causal_core(name: str) -> None:
    made, message = CAUSAL[name]
    body = f"param W[3, dim, dim], a[dim, 2]; y = {made}; out = attend causal_core(y, y, y)"
    with pytest.raises(AttnError, match=message) as caught:
        compiled(layer_of(body))
    assert all(each.code == "E405" and len(each.labels) == 2 for each in caught.value.diagnostics)


def test_a_convolution_may_look_ahead_as_far_as_its_result_is_shifted() -> None:
    body = "param W[3, dim, dim]; y = shift(convolve(x, W)); out = attend causal_core(y, y, y)"
    assert compiled(layer_of(body)).plan.is_causal and checked(layer_of(body)).ok


BLOCKS = "attention blocks(c = 3) { align = start; pattern = PATTERN }\n"


@pytest.mark.parametrize("pattern", ["c * j + c - 1 <= i", "c * j + c <= i & i - c * j < 20"])
def test_keys_of_blocks_stand_where_their_last_token_does(pattern: str) -> None:
    core = BLOCKS.replace("PATTERN", pattern)
    text = core + "layer written(dim, c = 3) { input x[n, dim]; y = pool(x, c); out = attend blocks(x, y, y, c = c) }"
    assert compiled(text).plan.is_causal
    report = checked(text)
    assert report.ok, "\n".join(report.failures)


@pytest.mark.parametrize("pattern", ["causal", "c * j <= i", "c * j + c - 2 <= i"])
def test_keys_of_blocks_are_not_seen_before_they_end(pattern: str) -> None:
    core = BLOCKS.replace("PATTERN", pattern)
    text = core + "layer written(dim, c = 3) { input x[n, dim]; y = pool(x, c); out = attend blocks(x, y, y, c = c) }"
    with pytest.raises(AttnError, match="`pool` along the sequence comes before the causal core `blocks`"):
        compiled(text)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("param W[3, dim]; out = convolve(x, W)", "E401"),
        ("param W[3, 4]; out = depthwise(x, W)", "E401"),
        ("param W[3, dim, dim]; out = convolve(x[0], W)", "E401"),
        ("param W[3, dim, dim]; out = convolve(x, W, strid = 2)", "E206"),
        ("param W[3, dim, dim]; out = convolve(x, W, stride = 0)", "E401"),
        ("param a[dim, 2], b[dim, 3]; out = ema(x, a, b)", "E401"),
        ("out = unpool(x, 3)", "E401"),
        ("out = unpool(pool(x, 2), 3)", "E401"),
        ("out = x @ identity(n)", "E401"),
        ("out = iterate(x -> x, x, times = 2)", "E203"),
        ("out = iterate(z -> mean(z, over = n), x, times = 2)", "E401"),
        ("out = iterate(z -> z, x, times = 100)", "E401"),
        ("out = iterate(z -> z, x, times = n)", "E401"),
        ("out = iterate(x, x, times = 2)", "E206"),
        ("out = pool(z -> z, 2)", "E206"),
        ("param g[dim]; out = batch_norm(x, g, g, g * 2, g)", "E401"),
        ("param g[3]; out = batch_norm(x, g, g, g, g)", "E401"),
        ("out = stack(x, x[0])", "E401"),
        ("param W[2, dim, 3, 3]; out = convolve_2d(x, W)", "E401"),
    ],
)
def test_what_does_not_fit(body: str, code: str) -> None:
    with pytest.raises(AttnError) as caught:
        compiled(layer_of(body))
    assert {each.code for each in caught.value.diagnostics} == {code}, caught.value
    assert all(each.labels for each in caught.value.diagnostics)


def test_running_statistics_are_buffers() -> None:
    text = layer_of(f"{MAPS['batch_norm']} * 1", inputs="x[dim, n, m]")
    made = load_module(compiled(text).text, "written").Written(dim=3).double()
    assert [name for name, _ in made.named_parameters()] == ["g", "b"]
    assert [name for name, _ in made.named_buffers()] == ["mean_of", "variance_of"]
    peer = torch.nn.BatchNorm2d(3).double()
    x = torch.randn(4, 3, 5, 6, dtype=torch.float64)
    for _ in range(2):
        torch.testing.assert_close(made(x), peer(x))
    torch.testing.assert_close(made.mean_of, peer.running_mean)
    torch.testing.assert_close(made.variance_of, peer.running_var)
    torch.testing.assert_close(made.eval()(x), peer.eval()(x))


def test_a_long_moving_average_forgets_nothing() -> None:
    """Blocks hand their states on: an impulse is seen thousands of tokens later as the power of its decay says."""
    body = "param a[dim, 2], w[dim, 2]; out = ema(x, a, w)"
    made = load_module(compiled(layer_of(body)).text, "written").Written(dim=2).double()
    with torch.no_grad():
        made.a.copy_(torch.tensor([[0.999, 0.0], [0.9999, 1.0]], dtype=torch.float64))
        made.w.fill_(1.0)
    x = torch.zeros(1, 5000, 2, dtype=torch.float64)
    x[0, 7] = 1.0
    out = made(x)
    for t in (7, 8, 70, 71, 135, 4096, 4999):
        lag = t - 7
        expected = torch.tensor([0.999**lag + (lag == 0), 0.9999**lag + 1.0], dtype=torch.float64)
        torch.testing.assert_close(out[0, t], expected, rtol=1e-12, atol=0)
    out.sum().backward()
    assert made.a.grad.isfinite().all() and (out[0, :7] == 0).all()


def test_functions_of_cores_and_of_operators_do_not_meet() -> None:
    """Cores have functions of their own, such as sums by states, and names that operators' functions could have."""
    core = "attention pool { pattern = causal; weight = dot(elu(q) + 1, elu(k) + 1) }\n"
    text = core + (
        "layer written(dim) { input x[n, dim]; y = attend pool(shift(x), x, x); "
        "out = y * sum(y, over = n) + segments(y, 1) + mean(pool(y, 2), over = ceil(n / 2)) }"
    )
    report = checked(text)
    assert report.ok, "\n".join(report.failures)


@pytest.mark.parametrize(
    ("core", "reason"),
    [
        (f"{BY_RANK} pattern = causal & 0 <= s[i] // 4 - s[j] // 4 <= 1", "keys are ranked"),
        ("let best = top(3, by = score); pattern = causal & best", "queries choose by keys"),
        ("let best = top(3, by = score, among = causal); pattern = best", ""),
        ("let b = hash(k, R[h]); pattern = causal & b[i] == b[j]", ""),
    ],
)
def test_what_later_keys_decide_is_not_causal(core: str, reason: str) -> None:
    reads = "R[" in core
    text = f"attention chosen {{ {'input R[H, d, 4]; ' * reads}{core} }}\n" + layer_of(
        f"param W[dim, dim]{', R[2, dim // 2, 4] = fixed(normal(1))' * reads}; q = heads(x @ W, 2); "
        f"out = merge(attend chosen(q, q, q{', R' * reads}))"
    )
    found = compiled(text)
    assert found.plan.is_causal == (reason == "") and reason in found.plan.decoding
    assert checked(text).ok


def test_whole_sequences_before_a_core_that_sees_none_later_are_refused_all_the_same() -> None:
    core = f"attention chosen {{ input R[H, d, 4]; {BY_RANK} pattern = causal & s[i] >= s[j] }}\n"
    with pytest.raises(AttnError, match="E405"):
        body = "param R[2, dim // 2, 4]; y = x * mean(x, over = n); z = heads(y, 2)"
        compiled(core + layer_of(f"{body}; out = merge(attend chosen(z, z, z, R))"))


ENDED = "attention blocks(c = 3) { align = start; pattern = c * j + c - 1 <= i }\n"
OF_BLOCKS = {
    "pooled twice, turned": (
        ENDED, "c = 6",
        ("param W[2, dim, dim]; z = convolve(x, W, stride = 2, before = 0); y = rope(rms_norm(pool_max(z, 3))); "
        "out = attend blocks(x, y, y, c = c)"), ""
    ),
    "convolutions that look back over blocks": (
        ENDED, "c = 3", ("param W[5, dim, dim], V[4, dim, dim]; "
        "y = convolve(convolve(x, W, stride = 3, before = 2), V, before = 3); "
        "out = attend blocks(x, y, pool_max(x, 3), c = c) + attend blocks(x, pool(x, 3), y, c = c)"), ""
    ),
    "beside single tokens": (
        ENDED, "c = 3", ("param W[3, dim]; y = depthwise(x, W, stride = 3, before = 0); "
        "out = attend blocks(x, y, y, c = c) + attend causal_core(x, x, x)"), ""
    ),
    "shifted blocks": (
        ENDED, "c = 3", "y = shift(pool(x, c)); out = attend blocks(x, y, y, c = c)",
        "`shift` works along the sequence of blocks"
    ),
    "queries that stand at the end": (
        ENDED.replace("align = start; ", ""), "c = 3", "y = pool(x, c); out = attend blocks(x, y, y, c = c)",
        ("of the core `blocks`, whose keys are blocks of tokens, the first query stands where the last one decides: "
        "write `align = start`")
    ),
    "how many blocks there are": (
        ENDED.replace("align", "normalize = m; align"), "c = 3", "y = pool(x, c); out = attend blocks(x, y, y, c = c)",
        "of the core `blocks`, whose keys are blocks of tokens, something reads how many there are"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_BLOCKS)
def test_steps_through_blocks(name: str) -> None:
    core, parameters, body, reason = OF_BLOCKS[name]
    text = core + layer_of(body, parameters=f"dim, {parameters}")
    found = compiled(text)
    assert found.plan.is_causal and found.plan.decoding == reason
    report = checked(text)
    assert report.ok, "\n".join(report.failures)
    assert any(each.name == "steps" for each in report.properties) == (not reason)


def test_caches_of_blocks_are_saved_and_moved(tmp_path: Path) -> None:
    core, parameters, body, _ = OF_BLOCKS["convolutions that look back over blocks"]
    found = compiled(core + layer_of(body, parameters=f"dim, {parameters}"))
    module = load_module(found.text, found.spec.name)
    made, x = module.Written(6).double(), torch.randn(2, 14, 6, dtype=torch.float64)
    whole = made(x)
    first, cache = made.step(x[:, :1])
    second, cache = made.step(x[:, 1:8], cache.to("cpu"))
    torch.save(cache, tmp_path / "cache.pt")
    cache = torch.load(tmp_path / "cache.pt", weights_only=False)
    third, _ = made.step(x[:, 8:], cache)
    torch.testing.assert_close(torch.cat((first, second, third), 1), whole)


def test_means_of_all_blocks_are_later_keys() -> None:
    core = ENDED.replace("align", "let v = v - mean_over_keys(v); align")
    found = compiled(core + layer_of("y = pool(x, c); out = attend blocks(x, y, y, c = c)", parameters="dim, c = 3"))
    assert not found.plan.is_causal and "looks at later keys" in found.plan.decoding


@pytest.mark.parametrize(
    "body",
    ["pool(x, 0)", "shift(x, 0)", "repeat(x, 0)", "merge(heads(x, 0))", "part(x, 0, 0)", "pool_max(x, n)"],
)
def test_counts_are_one_or_more(body: str) -> None:
    with pytest.raises(AttnError, match="E401"):
        compiled(layer_of(f"out = {body}"))


def test_counts_that_a_module_gets_are_one_or_more() -> None:
    text = layer_of("out = shift(unpool(pool(x, c), c), c) + attend causal_core(x, x, x)", parameters="dim, c = 3")
    module = load_module(compiled(text).text, "written")
    with pytest.raises(ValueError, match="c is 0, expected a whole number of 32 bits, 1 or more"):
        module.Written(4, c=0)
    assert checked(text).ok
