"""The gradient of a forward graph, as another graph: reverse mode, node by node, each step by sympy.

With p_ij = w_ij / N_i and D_i = do_i . out_i - dlse_i the gradient of a weight is (do_i . v_j - D_i dN_i/drows) / N_i;
from there it flows through the numbers of the pair to the dot products, and is contracted with k, q and do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attncc.graph.ir import Graph, Node, number, pair_number
from attncc.graph.ops import Axis, Op
from attncc.rewrite.algebra import derivative, times
from attncc.rewrite.laws import weights_never_negative
from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Call,
    Compare,
    CompareOp,
    Const,
    Expr,
    Local,
    Name,
    Negate,
    Select,
    names_in,
    substitute,
    walk,
)

ROW = (Axis.ROW,)
PAIR = (Axis.ROW, Axis.COLUMN)


@dataclass(frozen=True, slots=True)
class Gradients:
    """A forward graph that saves what its backward graph reads, and that backward graph.

    `saved` names the row numbers that go from one to the other. `reads_delta` says whether backward reads the row
    number D_i = do_i . out_i - dlse_i, which is computed between the two. It is subtracted from numbers that are close
    to it, where a rounding of out_i to 16 bits may be all that is left: forward keeps what that takes from out_i, too.
    """

    forward: Graph
    backward: Graph
    saved: tuple[str, ...]
    reads_delta: bool
    has_lse: bool  # the row's log-sum-exp means something: N_i is a sum of weights that are never negative


def differentiate(forward: Graph) -> Gradients:
    """The backward graph of `forward` for q, k and v.

    Raises:
        NoDerivative: when a weight is no differentiable function of its dot products.
    """
    return _Backward(forward).run()


class _Backward:
    def __init__(self, forward: Graph) -> None:
        self.forward = forward
        self.with_peak = "peak" in forward
        self.nodes: dict[str, Node] = {}
        self.saved: list[str] = []
        self.new_forward: list[Node] = []
        self.gradients: dict[str, Expr] = {}

    def run(self) -> Gradients:
        forward = self.forward
        sums = {node.inputs[0]: node.name for node in forward.find(Op.SUM) if node.name.startswith("rows")}
        reads_delta = bool(sums)
        has_lse = reads_delta and weights_never_negative(forward)
        self._copy_pair_nodes()
        self._add(Node(name="d_out", op=Op.OPERAND, axes=(Axis.ROW, Axis.VALUE)))
        share = self._shares(sums, has_lse)
        if reads_delta:
            self._add(Node(name="delta", op=Op.STATISTIC, axes=ROW))
        self._add(Node(name="d_share", op=Op.DOT, axes=PAIR, inputs=("d_out", "v")))
        self._seed(sums, reads_delta)
        self._propagate()
        outputs = self._contractions(share)
        saved = list(self.saved)
        forward_outputs = ["out", *saved]
        if has_lse and "lse" not in saved:
            forward_outputs.append("lse")
        changed = forward.change(*self.new_forward, outputs=forward_outputs)
        backward = Graph(self.nodes.values(), outputs)
        return Gradients(changed, backward, tuple(saved), reads_delta, has_lse)

    def _add(self, node: Node) -> str:
        self.nodes[node.name] = node
        return node.name

    # --- what is computed again -------------------------------------------------------------------------------

    def _copy_pair_nodes(self) -> None:
        """Everything of the pair is computed again; numbers of the row are read from what forward saved."""
        for node in self.forward:
            reduced = node.op in (Op.SUM, Op.PEAK, Op.CONTRACT, Op.DIVIDE)
            if reduced or node.name in ("norm", "lse") or not self._reads_pair(node):
                continue
            self._add(node)
        for node in tuple(self.nodes.values()):
            for name in node.inputs:
                if name not in self.nodes and name != "peak":
                    self._save(name)

    def _reads_pair(self, node: Node) -> bool:
        return node.op is Op.OPERAND or Axis.COLUMN in node.axes or (node.op is Op.NUMBER and not node.axes)

    def _save(self, name: str) -> None:
        self._add(Node(name=name, op=Op.STATISTIC, axes=ROW))
        if name not in self.saved:
            self.saved.append(name)

    def _shares(self, sums: dict[str, str], has_lse: bool) -> str:
        """The nodes that hold weight / N; returns the one that multiplies v."""
        contracted = self.forward["total" if "total" in self.forward else "out"].inputs[0]
        if self.with_peak:
            self._normalise_by_lse(has_lse)
            return contracted
        self._normalise_by_inverse(has_lse)
        if "inverse" not in self.nodes:
            return contracted
        self._add(number("share", times(Local(contracted), Local("inverse")), self.nodes.values()))
        return "share"

    def _normalise_by_lse(self, has_lse: bool) -> None:
        """exp(s - peak) / norm = exp(s - lse): the same expression with another row number."""
        self._save("lse")
        if not has_lse:
            self._save("sign")
            self.new_forward.append(number("sign", Call("sign", (Local("norm"),)), [self.forward["norm"]]))
            log = Call("log", (Call("abs", (Local("norm"),)),))
            known = [self.forward["norm"], self.forward["peak"]]
            self.new_forward.append(number("lse", Binary(BinaryOp.ADD, Local("peak"), log), known))
        for node in tuple(self.nodes.values()):
            if "peak" in node.inputs:
                expr = substitute(node.value, {Local("peak"): Local("lse")})
                expr = expr if has_lse else times(Local("sign"), expr)
                self._add(replace(number(node.name, expr, self.nodes.values()), axes=node.axes))

    def _normalise_by_inverse(self, has_lse: bool) -> None:
        norm = self.forward["norm"] if "norm" in self.forward else None
        if norm is None or norm.expr == Const(1):
            return
        inverse = Select(
            Compare(CompareOp.EQUAL, Local("norm"), Const(0)),
            Const(0),
            Binary(BinaryOp.DIVIDE, Const(1), Local("norm")),
        )
        if not norm.axes:  # a number of the whole call: cheaper to compute again than to save
            self._add(norm)
            self._add(number("inverse", inverse, self.nodes.values()))
            return
        self.new_forward.append(number("inverse", inverse, [norm]))
        self._save("inverse")
        if has_lse:
            self.new_forward.append(number("lse", Call("log", (Local("norm"),)), [norm]))

    # --- reverse mode -----------------------------------------------------------------------------------------

    def _seed(self, sums: dict[str, str], reads_delta: bool) -> None:
        """The gradients of the weights that are summed, by the formula at the top."""
        for summed in dict.fromkeys((self._contracted(), *sums)):
            gradient: Expr | None = Local("d_share") if summed == self._contracted() else None
            if summed in sums:
                slope = self._slope(sums[summed])
                lost = times(slope, Local("delta"))
                gradient = Negate(lost) if gradient is None else Binary(BinaryOp.SUBTRACT, gradient, lost)
            if gradient is not None:
                if "inverse" in self.nodes:
                    gradient = times(gradient, Local("inverse"))
                self.gradients[self._unrestricted(summed)] = gradient

    def _contracted(self) -> str:
        return self.forward["total" if "total" in self.forward else "out"].inputs[0]

    def _unrestricted(self, name: str) -> str:
        node = self.forward[name]
        return node.inputs[0] if node.op is Op.RESTRICT else name

    def _slope(self, rows: str) -> Expr:
        """dN / d(sum): a constant, or a row number that forward saves."""
        slope = derivative(self.forward["norm"].value, Local(rows))
        if isinstance(slope, Const):
            return slope
        if not _is_finite(slope):
            slope = Select(Compare(CompareOp.EQUAL, Local("norm"), Const(0)), Const(0), slope)
        name = "slope" if rows == "rows" else f"slope_{rows.removeprefix('rows_')}"
        self.new_forward.append(number(name, slope, self.forward))
        self._save(name)
        return Local(name)

    def _propagate(self) -> None:
        """From the weights down to the dot products, each node's gradient named d_<node>."""
        order = [node for node in Graph(self.nodes.values(), tuple(self.nodes)) if node.is_tile]
        for node in reversed(order):
            if node.name not in self.gradients or node.op is Op.DOT:
                continue
            gradient = self._named(node.name)
            if node.op is Op.RESTRICT:
                self._give(node.inputs[0], gradient)
                continue
            for name in node.inputs:
                if self._reads_dot(name):
                    slope = derivative(node.value, Local(name))
                    slope = substitute(slope, {node.value: Local(node.name)})
                    self._give(name, times(gradient, slope))

    def _reads_dot(self, name: str) -> bool:
        node = self.nodes[name]
        return node.op is Op.DOT or any(self._reads_dot(each) for each in node.inputs if self.nodes[name].is_tile)

    def _named(self, name: str) -> Expr:
        """The gradient of a node as a node of its own, unless it is short."""
        gradient = self.gradients[name]
        if isinstance(gradient, Local):
            return gradient
        short = f"d_{name.removesuffix('_kept')}"
        if short in self.nodes:
            short = f"d_{name}"
        self._add(number(short, gradient, self.nodes.values()))
        return Local(short)

    def _give(self, name: str, gradient: Expr) -> None:
        before = self.gradients.get(name)
        self.gradients[name] = gradient if before is None else Binary(BinaryOp.ADD, before, gradient)

    # --- results ----------------------------------------------------------------------------------------------

    def _contractions(self, share: str) -> tuple[str, ...]:
        """dv from the shares; dq and dk from the gradients of the dot products."""
        if self.nodes[share].op is not Op.RESTRICT and not self._vanishes(share):
            share = self._restrict(share)
        self._add(Node(name="dv", op=Op.CONTRACT, axes=(Axis.COLUMN, Axis.VALUE), inputs=(share, "d_out")))
        dots = [node for node in self.nodes.values() if node.op is Op.DOT and node.name in self.gradients]
        if not dots:
            return ("dv",)
        (dot,) = dots  # one dot product of q and k; specs with more operands sum over them here
        uniform, rest = self._split_uniform(self.gradients[dot.name])
        kept = self._add(pair_number(f"d_{dot.name}", rest, self.nodes.values()))
        if not self._product_vanishes(rest):
            kept = self._restrict(kept)
        for name, operand, axis in (("dq", "k", Axis.ROW), ("dk", "q", Axis.COLUMN)):
            total = Node(name=name, op=Op.CONTRACT, axes=(axis, Axis.FEATURE), inputs=(kept, operand))
            if uniform is not None:
                self._add(replace(total, name=f"{name}_total"))
                self._add(number("d_dot_factor", uniform, self.nodes.values()))
                total = replace(total, op=Op.MULTIPLY, inputs=(f"{name}_total", "d_dot_factor"))
            self._add(total)
        return ("dq", "dk", "dv")

    def _vanishes(self, name: str) -> bool:
        """Whether a share is 0 wherever the pair is unrelated: exp of an exponent that is -inf there."""
        node = self.nodes[name]
        if not (isinstance(node.expr, Call) and node.expr.function == "exp"):
            return False
        return (
            self.with_peak
            and not any(each == "related" for each in node.inputs)
            and all(self.nodes[each].op is Op.RESTRICT for each in node.inputs if self.nodes[each].is_tile)
        )

    def _product_vanishes(self, expr: Expr) -> bool:
        """Whether a gradient is 0 wherever the pair is unrelated: a share that is 0 there, times finite numbers."""
        match expr:
            case Local(name=name) if self.nodes[name].op is Op.NUMBER and not self._vanishes(name):
                return self._product_vanishes(self.nodes[name].value)
            case Local(name=name):
                return self._vanishes(name)
            case Binary(op=BinaryOp.MULTIPLY, left=left, right=right):
                if self._product_vanishes(left):
                    return self._is_finite(right)
                return self._is_finite(left) and self._product_vanishes(right)
            case _:
                return False

    def _is_finite(self, expr: Expr) -> bool:
        """Whether a number is finite at unrelated pairs too: no division, logarithm or power is in it."""
        read = [self.nodes[each.name] for each in walk(expr) if isinstance(each, Local)]
        return _is_finite(expr) and all(self._is_finite(node.value) for node in read if node.op is Op.NUMBER)

    def _restrict(self, name: str) -> str:
        kept = f"{name}_kept"
        return self._add(Node(name=kept, op=Op.RESTRICT, axes=PAIR, inputs=(name, "related"), expr=Const(0)))

    def _split_uniform(self, gradient: Expr) -> tuple[Expr | None, Expr]:
        """gradient = uniform * rest: what is the same for every pair is multiplied once, after the sum."""
        uniform: list[Expr] = []
        rest: list[Expr] = []
        for factor in _factors(gradient):
            # Heads that share keys add up to one dk: what differs between them stays inside the sum.
            varies = number("factor", factor, self.nodes.values()).axes or self._reads_head(factor)
            (rest if varies else uniform).append(factor)
        return _product(uniform), _product(rest) or Const(1)

    def _reads_head(self, expr: Expr) -> bool:
        inputs = [self.nodes[each.name] for each in walk(expr) if isinstance(each, Local)]
        return Name.HEAD in names_in(expr) or any(node.expr and self._reads_head(node.expr) for node in inputs)


def _is_finite(expr: Expr) -> bool:
    """Whether an expression is finite wherever the numbers in it are."""
    for each in walk(expr):
        match each:
            case Binary(op=BinaryOp.DIVIDE | BinaryOp.POWER, right=right):
                if not isinstance(right, Const) or right.value < 0:
                    return False
            case Call(function="log" | "log2" | "sqrt" | "exp" | "exp2"):
                return False
    return True


def _factors(expr: Expr) -> list[Expr]:
    match expr:
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right):
            return _factors(left) + _factors(right)
        case Binary(op=BinaryOp.DIVIDE, left=left, right=right):
            inverse = Binary(BinaryOp.DIVIDE, Const(1), right)
            return [inverse] if left == Const(1) else [*_factors(left), inverse]
        case _:
            return [] if expr == Const(1) else [expr]


def _product(factors: list[Expr]) -> Expr | None:
    if not factors:
        return None
    result = factors[0]
    for factor in factors[1:]:
        match factor:
            case Binary(op=BinaryOp.DIVIDE, left=Const(value=1), right=right):
                result = Binary(BinaryOp.DIVIDE, result, right)
            case _:
                result = times(result, factor)
    return result
