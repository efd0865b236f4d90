"""The long text of every diagnostic code, with a spec that causes it and the one to write instead."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a code means; `wrong` is a spec that has the fault (empty where no text can), `right` one without it."""

    text: str
    wrong: str = ""
    right: str = ""


def _one(body: str, name: str = "my_pattern") -> str:
    return f"attention {name} {{ {body} }}"


def _layer(body: str) -> str:
    return f"layer my_layer(dim) {{ input x[n, dim]; {body} }}"


EXPLANATIONS: dict[str, Explanation] = {
    "E101": Explanation(
        "The text is a spec up to this place, and what comes next cannot follow. The message lists what could. "
        "Often a bracket is missing, or two statements stand on one line: a statement ends at the end of its line "
        "or at `;`.",
        _one("pattern = causal align = start"),
        _one("pattern = causal; align = start"),
    ),
    "E102": Explanation(
        "The text ends where something still has to come, most often the `}` that closes the attention or the `)` "
        "that closes a call.",
        "attention my_pattern { pattern = causal",
        _one("pattern = causal"),
    ),
    "E103": Explanation(
        "The language has no use for this character. Comments begin with `#`, `and` is written `&`, `or` is `|`, "
        "`not` is `!`, a power is `^`. Typographic minus signs and quotes that were pasted in have to be replaced.",
        _one("pattern = i − j <= 3"),
        _one("pattern = i - j <= 3"),
    ),
    "E104": Explanation(
        "Specs are a page of text. One that is far longer, or whose brackets are nested hundreds deep, is refused "
        "before it is read, so that no input can exhaust memory or the stack. Give parts of the expression a name: "
        "`pattern word(a) = …` above the attention.",
    ),
    "E201": Explanation(
        "The name is no parameter, no word of the prelude, no word of this file, and no function. The message names "
        "the nearest one that exists in this place.",
        _one("pattern = casual"),
        _one("pattern = causal"),
    ),
    "E202": Explanation(
        "An attention has the fields pattern, score, weight, normalize, similarity, value, combine and align, and "
        "nothing else; `align` is `start` or `end`. `combine` goes with branches, and branches with it.",
        _one("mask = causal"),
        _one("pattern = causal"),
    ),
    "E203": Explanation(
        "A name means one thing in a file. A field is set once, a parameter is declared once, and names of the "
        "language (i, j, h, n, m, d, e, H, functions) cannot be given another meaning.",
        "attention my_pattern { pattern = causal; pattern = window(3) }",
        "attention my_pattern { pattern = causal & window(3) }",
    ),
    "E204": Explanation(
        "Predicates (which pairs are related) and numbers (scores, weights) are different kinds, and one does not "
        "turn into the other by itself. Compare a number to get a predicate; write `[p]` to get 1 where p holds and "
        "0 elsewhere. Declared truth values, `input pad[B, m]: bool`, are predicates: `!pad` and not `pad == 0`.",
        _one("pattern = i - j"),
        _one("pattern = i - j == 0"),
    ),
    "E205": Explanation(
        "q, k and v are vectors, and a weight is a number of one pair. The way from one to the other is the dot "
        "product, `dot(q, k)`: the query's vector first, then the key's. Vectors that meet feature by feature have the "
        "same width. Declared data without the index of their last axis are vectors: `a` of `param a[H]` is one of H "
        "numbers, and `a[h]` is the number of the head.",
        _one("score = q"),
        _one("score = scale * dot(q, k)"),
    ),
    "E206": Explanation(
        "The arguments do not fit the word: too many, too few, one given twice, or a name that the word does not "
        "have. The message shows where the word is declared. Words whose parameters all have defaults can be "
        "written without brackets.",
        _one("pattern = window(3, 3, 3)"),
        _one("pattern = window(3, 3)"),
    ),
    "E207": Explanation(
        "Each field may read only what is known when it is needed. A pattern is decided before any score is computed, "
        "so it reads positions and numbers that come with the call, no vectors and no `score`; a normaliser is a "
        "number of the whole row, so it cannot read `j`. Tables of real numbers of batch entries or blocks "
        "are for patterns.",
        _one("weight = exp(score); normalize = j + 1"),
        _one("weight = exp(score); normalize = rows + 1"),
    ),
    "E208": Explanation(
        "A parameter without a default has no value until the command line gives one: `-D w=512`. Parameters are "
        "bound when the spec is built, because `//` and `%` by them are then constants, which index analysis needs.",
        "attention my_pattern(w) { pattern = window(w) }",
        "attention my_pattern(w = 512) { pattern = window(w) }",
    ),
    "E209": Explanation(
        "The value does not fit the parameter: it is no number, not a whole one where one is wanted, or the attention "
        "has no parameter of this name. A parameter whose default is a whole number takes whole numbers; write `w: "
        "real = 2` for one that does not. Declared data are `real`, `int` or `bool`, and may be promised to be "
        "`ascending`.",
        "attention my_pattern(w: int = 2.5) { pattern = window(w) }",
        "attention my_pattern(w: int = 2) { pattern = window(w) }",
    ),
    "E210": Explanation(
        "A `require` line states what parameters must fulfil for the spec to mean what its author meant. With the "
        "values given it does not hold; the notes show them.",
        "attention my_pattern(w = 0) { require w > 0; pattern = window(w) }",
        "attention my_pattern(w = 1) { require w > 0; pattern = window(w) }",
    ),
    "E211": Explanation(
        "Loop bounds are derived from the pattern by integer sets, which know sums of positions with constant "
        "factors, `//` and `%` by constants, comparisons, and `&`, `|`, `!`. A product of two positions is none of "
        "these. Parameters are constants: `i // c` is fine when c is one. A comparison that reads declared data gives "
        "no bounds, and may have any arithmetic: `doc[i] * 2 == doc[j]`.",
        _one("pattern = i * j < 100"),
        _one("pattern = i + j < 100"),
    ),
    "E212": Explanation(
        "The constants in this expression have no value together: a division by 0, the logarithm of 0, a root of a "
        "negative number; or a default is not made of constants. The note says which.",
        _one("pattern = i // 0 == j"),
        _one("pattern = i // 1 == j"),
    ),
    "E213": Explanation(
        "Words are replaced by what they stand for until none is left. A word that uses itself would never end, and "
        "words that double in size at every level would fill the memory.",
        "pattern again(c) = again(c - 1)\n" + _one("pattern = again(3)"),
        "pattern once(c) = i - j < c\n" + _one("pattern = once(3)"),
    ),
    "E214": Explanation(
        "`similarity = word` sets both `weight` and `normalize`, so neither can be set beside it; and it names a "
        "similarity word such as softmax, not an expression.",
        _one("similarity = softmax; normalize = rows + 1"),
        _one("weight = exp(score); normalize = rows + 1"),
    ),
    "E215": Explanation(
        "A file defines one attention, which gives the module its name. Words (`pattern`, `similarity`, `function`) "
        "may stand beside it in any number.",
        "pattern near = i - j < 3",
        "pattern near = i - j < 3\n" + _one("pattern = near"),
    ),
    "E216": Explanation(
        "A list holds constants and is read at once, by a whole number made of h and H: `[1, 1, 2, 4][h]`. Declared "
        "data are read at one whole number for each of their axes; the last axis may be left out, which gives a "
        "vector. Data with an axis n (m) hold something for each row (key), and are read at their own i (j).",
        _one("pattern = i - j < [8, 16][j]"),
        _one("pattern = i - j < [8, 16][h % 2]"),
    ),
    "E217": Explanation(
        "The name of an attention becomes the name of a Python module, so it is no keyword of Python, begins with a "
        "letter, has at most 64 characters, and hides none of the modules that emitted code imports (`torch`, "
        "`triton`, `math`, `functools`, `typing`). Declared data become arguments of a Python function, and "
        "branches variables: they have no name that means something else there, such as `scale`, `x` or `rows`, and "
        "parameters none that `torch.nn.Module` has, such as `forward`.",
        "attention class { pattern = causal }",
        "attention classes { pattern = causal }",
    ),
    "E218": Explanation(
        "Data are declared with their axes. A parameter is made before any call: its axes are H, d, e and whole "
        "numbers, `param bias[H, 32]`. An input comes with each call: vectors of queries `input u[B, H, n, d]`, of "
        "keys `input w[B, H, m, d]`, numbers `input g[B, H, n]`, or a table without n and m. A table that a pattern "
        "reads may begin with B, and have axes of blocks: `input t[B, ceil(n / 16), ceil(m / 16)]: bool`. `ascending` "
        "promises that numbers of tokens never fall from one token to the next.",
        _one("param bias[H, n]; score = dot(q, k) + bias[h, i]"),
        _one("param bias[H, 512]; score = dot(q, k) + bias[h, i]"),
    ),
    "E219": Explanation(
        "`use` takes the words of another file: its patterns, functions and similarities. The path is looked up beside "
        "the file that asks, then in the directories of the environment variable ATTNCC_PATH. No file may use itself, "
        "directly or through others. What is wrong in a used file is told by the name of that file.",
    ),
    "E301": Explanation(
        "No query is related to any key, for any lengths, so every output would be 0. Two conditions exclude each "
        "other, or a sign is the wrong way round: i is the query, j the key, and the past is `j <= i`.",
        _one("pattern = causal & j > i"),
        _one("pattern = causal & j >= i"),
    ),
    "E302": Explanation(
        "A vector made of the query's and the key's vectors exists for every pair. Its features can be summed, "
        "`dot(a[h], tanh(q + k))`, one by one; it cannot be multiplied by a matrix, rotated, or reduced otherwise, "
        "since that would take a vector's work for every pair. Do so with the vector of each token, before they meet.",
        _one("param W[H, d, 8], a[H, 8]; score = dot(a[h], tanh((q + k) @ W[h]))"),
        _one("param W[H, d, 8], a[H, 8]; score = dot(a[h], tanh(q @ W[h] + k @ W[h]))"),
    ),
    "E303": Explanation(
        "`merge` makes one attention of several: weights and sums of rows are added before the division. So each "
        "branch has to divide by the sum of weights that are never negative, as softmax does. Branches that divide "
        "by nothing or by a number are added.",
        "attention a {\n  branch near { weight = relu(score); normalize = none }\n  branch far { pattern = causal }\n"
        "  combine = merge(near, far)\n}",
        "attention a {\n  branch near { weight = relu(score); normalize = rows }\n  branch far { pattern = causal }\n"
        "  combine = merge(near, far)\n}",
    ),
    "E304": Explanation(
        "A function such as `softmax_over_keys` gives every key something of all others, also of later ones. Where the "
        "pattern is causal, queries would learn of keys that it hides from them. `cumsum` looks back only. The shares "
        "of a softmax over keys can be had by division instead, so that each query counts the keys it sees.",
        _one("let k = softmax_over_keys(k); pattern = causal; weight = dot(q, k); normalize = none"),
        _one("pattern = causal; weight = dot(softmax_of(q), exp(k)); normalize = rows"),
    ),
    "E305": Explanation(
        "`normalize = channels` divides each feature of the keys by the sum of its weights over the row, before the "
        "features are summed. So the weight has to be a product of vectors, dot(a, b) with a of the query and b of the "
        "key, perhaps times a number such as a decay.",
        _one("weight = exp(score); normalize = channels"),
        _one("weight = dot(softmax_of(q), exp(k)); normalize = channels"),
    ),
    "E306": Explanation(
        "`pool(k, 16)` has one vector for every 16 keys, so that there are fewer of them than of v. All that weights "
        "and values read of keys has to be pooled alike, and stand at the same place; `m` and `valid` count keys, not "
        "blocks. `at` says where blocks stand: at the last of their keys, a causal query sees a block when it is full.",
        _one("let k = pool(k, 16) at 16 * j + 15; pattern = causal"),
        "attention my_pattern {\n  let k = pool(k, 16) at 16 * j + 15\n  let v = pool(v, 16) at 16 * j + 15\n"
        "  pattern = causal\n}",
    ),
    "E401": Explanation(
        "Every value of a layer has axes whose lengths are parameters, the lengths n and m of sequences, and sums and "
        "products of these; a batch axis stands before them. `@` sums over the last axis of its left and the last but "
        "one of its right side. Elsewhere axes are matched from the last one on, and one of length 1 goes with any. "
        "The message shows both shapes and the axes that do not fit.",
        _layer("param W[2 * dim, dim]; out = x @ W"),
        _layer("param W[dim, 2 * dim]; out = x @ W"),
    ),
    "E402": Explanation(
        "`over = …` names an axis by its length, or the last one as `features`. Axes of what is learned are made of "
        "whole numbers and parameters; those of inputs may be n and m, which the call decides.",
        _layer("param E[8, n]; out = E @ x"),
        _layer("param E[8, 512]; out = first(E, n) @ x"),
    ),
    "E403": Explanation(
        "A layer is made of `input`, `param`, `require` and values, `name = …`, each defined once and from those above "
        "it; the last one is `out`. What is learned begins as a number, `zeros`, `ones`, `normal(0.02)`, "
        "`uniform(0.1)`, `linear`, `xavier` or `kaiming`. Without a word on it a matrix begins as in "
        "`torch.nn.Linear`, a gain of a norm as 1 and any other vector as 0.",
        _layer("pattern = causal; out = x"),
        _layer("out = x"),
    ),
    "E404": Explanation(
        "`attend core(…)` takes values for what the attention declares, in the order in which it does: q, k, v, then "
        "its inputs. They have the axes [heads, tokens, features], or [tokens, features] for one head. Parameters of "
        "the attention, what it learns, and `scale` are given by name.",
        "attention full {}\n" + _layer("out = attend full(x, x)"),
        "attention full {}\n" + _layer("out = attend full(x, x, x)"),
    ),
    "E405": Explanation(
        "A causal attention sees no later token. If what it is called with was made by an operator that reads the "
        "whole sequence, such as a mean over n, every token knows of later ones all the same: training would look "
        "right, and generation would not. Operators that look a few tokens ahead are right behind a `shift` of "
        "as many, and keys made of blocks of c tokens in a core that sees no block before it has ended.",
        "attention causal_core { pattern = causal }\n"
        + _layer("y = x - mean(x, over = n); out = attend causal_core(y, y, y)"),
        "attention causal_core { pattern = causal }\n" + _layer("y = layer_norm(x); out = attend causal_core(y, y, y)"),
    ),
    "W301": Explanation(
        "A dot product has no largest value, and exp(x) of 32 bits ends at x = 88, of float16 at x = 11. Beyond, the "
        "weight is infinite, and so is the output, or its gradient is NaN. Where the weight is a sum of exponentials "
        "and the normaliser a multiple of `rows`, the largest exponent of the row is subtracted first and nothing "
        "overflows. Elsewhere the module is right for small exponents only: keep them small, or bound them.",
        _one("weight = exp(score); normalize = none"),
        _one("weight = exp(min(score, 11)); normalize = none"),
    ),
    "W302": Explanation(
        "An argument that changes nothing is most often a forgotten term. Data count as read where weights, the "
        "normaliser, the value or `combine` read them; a `score` that the weight does not read is not read either.",
        _one("param bias[H, 8]; score = scale * dot(q, k)"),
        _one("param bias[H, 8]; score = scale * dot(q, k) + bias[h, clip(i - j, 0, 7)]"),
    ),
    "E901": Explanation(
        "A file or folder cannot be read or written, or is not UTF-8 text. Nothing was changed.",
    ),
}


def explain(code: str) -> str:
    """The long text of a code with its examples, for people."""
    found = EXPLANATIONS.get(code)
    if found is None:
        return "There is no longer text for this code."
    parts = [_wrapped(found.text)]
    if found.wrong:
        parts.append("Instead of\n" + _indented(found.wrong))
        parts.append("write\n" + _indented(found.right))
    return "\n\n".join(parts)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 96)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
