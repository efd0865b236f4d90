"""Random specs of several branches: sums, differences, gates and merges; `pick` is the only source of randomness."""

from __future__ import annotations

from tests import random_language as language
from tests.random_specs import Pick, random_pattern

# of branches one, two, and six where there are three
COMBINED = (
    ("one + two", 2),
    ("one - 0.5 * two", 2),
    ("merge(one, two)", 2),
    ("sigmoid(heat[h]) * one + (1 - sigmoid(heat[h])) * two", 2),
    ("unit(one - tau * two) * gain_v", 2),
    ("g * one + two", 2),
    ("max(one, two)", 2),
    ("relu(one) * tanh(two)", 2),
    ("merge(one, two) * g", 2),
    ("(i % 2 == 0 ? one : two)", 2),
    ("by_head [1, 0] * one + two", 2),
    ("one + two - six", 3),
    ("merge(one, two, six)", 3),
    ("merge(six, one) - two", 3),
    ("merge(one, two) + sigmoid(g) * six", 3),
    ("dot(softmax_of(one), two) * six / 4", 3),
)
VALUES = ("v", "v * gain_v", "rms_norm(v)", "relu(v)", "v * sigmoid(s)", "v * heat[h]")
NORMALIZERS = ("rows", "rows", "rows + exp(heat[h])", "rows + 0.5", "rows + exp(g)")
PLAIN_WEIGHTS = (
    "exp(score)",
    "exp(score)",
    "sigmoid(score)",
    "softplus(score)",
    "exp(score + s)",
    "exp(score) * s^2 + 0.1",
)


def random_branches_spec(pick: Pick) -> str:
    """The text of a spec of two or three branches."""
    combined, count = pick(COMBINED)
    outside = []
    if pick((True, False)):
        outside.append(f"let {pick(language.LETS[:9])}")
    if pick((True, False)):
        outside.append(f"pattern = {_pattern(pick)}")
    branches = [_branch(pick, name) for name in ("one", "two", "six")[:count]]
    return language.whole_spec([*outside, *branches, f"combine = {combined}"])


def _branch(pick: Pick, name: str) -> str:
    fields = []
    if pick((False, True)):
        fields.append(f"let {pick(language.LETS[:9])}")
    if pick((True, False)):
        fields.append(f"pattern = {_pattern(pick)}")
    if pick((True, True, False)):
        fields.append(f"score = {pick(pick((language.PRODUCTS, language.PRODUCTS, language.CHANNELS)))}")
    if pick((False, True)):
        fields.append(f"score = {pick(language.PRODUCTS)} + {pick((*language.OF_DISTANCE, *language.OF_KEY))}")
        fields = [each for at, each in enumerate(fields) if not each.startswith("score") or at == len(fields) - 1]
    if pick((False, True)):
        fields.append(f"weight = {pick(PLAIN_WEIGHTS)}")
        fields.append(f"normalize = {pick(NORMALIZERS)}")
    if pick((False, True)):
        fields.append(f"value = {pick(VALUES)}")
    return f"branch {name} {{ {'; '.join(fields)} }}"


def _pattern(pick: Pick) -> str:
    return str(pick((random_pattern(pick, 0), pick(language.PATTERNS))))
