"""A value made again and again: the bounded loop of the language."""

from __future__ import annotations

from dataclasses import replace
from keyword import iskeyword

from attncc.diagnostics import Label
from attncc.spec.layers.calls import Call, Operator
from attncc.spec.layers.dims import RUN_TIME
from attncc.spec.layers.findings import fail
from attncc.spec.layers.model import Node, Op

MARK = "_"  # before the name of a loop's value: no other name begins so
_MOST = 64  # times that are written as a number


def _iterate(call: Call) -> Node:
    """iterate(z -> f(z), first, times = 6)"""
    function, start = call.function(0), call.tensor(1)
    times = call.dim(2, "times")
    if times.symbols & set(RUN_TIME):
        fail("E401", "`iterate` ends after so many times as parameters say", call.span,
             helps=("write `times = 6`, or a parameter",))  # fmt: skip
    if times.number is not None and not 1 <= times.number <= _MOST:
        fail("E401", f"`iterate` repeats 1 to {_MOST} times", call.span, f"found {times}")
    if iskeyword(function.parameter.text):
        fail("E217", f"nothing in a layer can be named `{function.parameter.text}`", function.parameter.span)
    kind = start.type
    for _ in range(2):  # a first value that is the same for all batch entries becomes one of each
        name = MARK + function.parameter.text
        body = function.of(Node(Op.NAME, (), kind, name=name, span=function.parameter.span))
        if body.type == kind:
            return Node(Op.ITERATE, (start, body), kind, name=name, dims=(times,), span=call.span)
        if body.type != replace(kind, batched=True):
            break
        kind = body.type
    labels = (Label(start.span, str(start.type)),) if start.span is not None else ()
    note = "what a loop makes has the shape of what it was made of"
    fail("E401", "`iterate` changes the shape of its value", body.span, str(body.type), *labels, notes=(note,))


ITERATION = (
    Operator("iterate", "iterate(z -> f(z), first, times = 6)",
             "z is `first`, and then so many times what the function makes of z; it may read other values", _iterate),
)  # fmt: skip
