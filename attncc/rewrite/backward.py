"""The gradient of a forward graph, as another graph: reverse mode, node by node.

With p_ij = w_ij / N_i and D_i = do_i . out_i - dlse_i the gradient of a weight is (do_i . v_j - D_i dN_i/drows) / N_i;
from there it flows through the numbers of the pair to what they are made of: dot products and sums over channels, where
it is contracted with the vectors of the other side, and numbers of rows, keys, distances and tables, over whose pairs
it is summed. A number that stands in N_i itself gets -D_i dN_i/dx / N_i beside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attncc.graph.ir import Graph, Node, number, pair_number
from attncc.graph.ops import Axis, Op
from attncc.rewrite.algebra import derivative
from attncc.rewrite.laws import weights_never_negative
from attncc.rewrite.slopes import times
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
    Vector,
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
    # For each sum of a row what its gradient is: a number of the row, for a sum of values the factor of d_out.
    of_sums: tuple[tuple[str, Expr], ...]


def differentiate(
    forward: Graph,
    at_least_zero: frozenset[str] = frozenset(),
    fixed: frozenset[str] = frozenset(),
    *,
    factors_last: bool = True,
) -> Gradients:
    """The backward graph of `forward` for every operand; numbers that jump have the derivative 0.

    Args:
        at_least_zero: operands of numbers that are proven never to be negative.
        fixed: operands that nothing learned is in: they have no gradients.
        factors_last: whether what is the same for all pairs multiplies their sum; else each pair, so that sums of
            other origin can be added to it.
    """
    return _Backward(forward, at_least_zero, fixed, factors_last).run()


class _Backward:
    def __init__(
        self, forward: Graph, at_least_zero: frozenset[str], fixed: frozenset[str], factors_last: bool
    ) -> None:
        self.forward = forward
        self.factors_last = factors_last
        self.fixed = fixed
        self.at_least_zero = at_least_zero
        self.with_peak = "peak" in forward
        self.nodes: dict[str, Node] = {}
        self.saved: list[str] = []
        self.new_forward: list[Node] = []
        self.gradients: dict[str, Expr] = {}  # of numbers, each a number of the pair
        self.of_sums: list[tuple[str, Expr]] = []
        self.parts: dict[str, list[str]] = {}  # for each operand the nodes that its gradient is the sum of

    def run(self) -> Gradients:
        forward = self.forward
        sums = {node.inputs[0]: node.name for node in forward.find(Op.SUM) if node.name.startswith("rows")}
        in_norm = self._numbers_of_norm()
        reads_delta = bool(sums) or bool(in_norm)
        has_lse = bool(sums) and weights_never_negative(forward, self.at_least_zero)
        self._copy_pair_nodes()
        values = forward[self._contracting().inputs[1]]
        self._add(Node(name="d_out", op=Op.OPERAND, axes=(Axis.ROW, Axis.VALUE), width=values.width))
        share = self._shares(sums, has_lse)
        if reads_delta:
            self._add(Node(name="delta", op=Op.STATISTIC, axes=ROW))
        self._add(Node(name="d_share", op=Op.DOT, axes=PAIR, inputs=("d_out", values.name)))
        self._seed(sums)
        self._propagate()
        self._give_values(share, values)
        self._give_operands()
        self._give_norm(in_norm)
        outputs = self._outputs()
        saved = list(self.saved)
        forward_outputs = ["out", *saved]
        if has_lse and "lse" not in saved:
            forward_outputs.append("lse")
        changed = forward.change(*self.new_forward, outputs=forward_outputs)
        backward = Graph(self.nodes.values(), outputs)
        return Gradients(changed, backward, tuple(saved), reads_delta, has_lse, tuple(self.of_sums))

    def _contracting(self) -> Node:
        """The node that sums weights times vectors."""
        return self.forward["total" if "total" in self.forward else "out"]

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
            if node.op is not Op.OPERAND or node.name in self._read_by_pairs():
                self._add(node)
        for node in tuple(self.nodes.values()):
            for name in node.inputs:
                if name not in self.nodes and name != "peak":
                    self._save(name)

    def _reads_pair(self, node: Node) -> bool:
        return node.op is Op.OPERAND or Axis.COLUMN in node.axes or (node.op is Op.NUMBER and not node.axes)

    def _read_by_pairs(self) -> frozenset[str]:
        """The operands that some number of a pair is made of, and the values."""
        read = {name for node in self.forward if node.is_tile for name in node.inputs}
        return frozenset(read | {self._contracting().inputs[1]})

    def _save(self, name: str) -> None:
        self._add(Node(name=name, op=Op.STATISTIC, axes=ROW))
        if name not in self.saved:
            self.saved.append(name)

    def _shares(self, sums: dict[str, str], has_lse: bool) -> str:
        """The nodes that hold weight / N; returns the one that multiplies v."""
        contracted = self._contracted()
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
        inverse = reciprocal("norm")
        if not norm.axes:  # a number of the whole call: cheaper to compute again than to save
            self._add(norm)
            self._add(number("inverse", inverse, self.nodes.values()))
            return
        self.new_forward.append(number("inverse", inverse, [norm]))
        self._save("inverse")
        if has_lse:
            self.new_forward.append(number("lse", Call("log", (Local("norm"),)), [norm]))

    # --- reverse mode -----------------------------------------------------------------------------------------

    def _seed(self, sums: dict[str, str]) -> None:
        """The gradients of the weights that are summed, by the formula at the top."""
        inverse: Expr = Local("inverse") if "inverse" in self.nodes else Const(1)
        self.of_sums.append((self._contracting().name, inverse))
        for summed in dict.fromkeys((self._contracted(), *sums)):
            gradient: Expr | None = Local("d_share") if summed == self._contracted() else None
            if summed in sums:
                slope = self._slope(sums[summed])
                lost = times(slope, Local("delta"))
                self.of_sums.append((sums[summed], Negate(times(lost, inverse))))
                gradient = Negate(lost) if gradient is None else Binary(BinaryOp.SUBTRACT, gradient, lost)
            if gradient is not None:
                if "inverse" in self.nodes:
                    gradient = times(gradient, Local("inverse"))
                self.gradients[self._unrestricted(summed)] = gradient

    def _contracted(self) -> str:
        return self._contracting().inputs[0]

    def _unrestricted(self, name: str) -> str:
        node = self.forward[name]
        return node.inputs[0] if node.op is Op.RESTRICT else name

    def _slope(self, rows: str) -> Expr:
        """dN / d(sum): the same for every row, or a row number that forward saves."""
        slope = derivative(self.forward["norm"].value, Local(rows))
        if not _is_finite(slope):
            slope = Select(Compare(CompareOp.EQUAL, Local("norm"), Const(0)), Const(0), slope)
        name = "slope" if rows == "rows" else f"slope_{rows.removeprefix('rows_')}"
        saved = number(name, slope, self.forward)
        if Axis.ROW not in saved.axes:
            return slope
        self.new_forward.append(saved)
        self._save(name)
        return Local(name)

    def _propagate(self) -> None:
        """From the weights down to what the operands give, each node's gradient named d_<node>."""
        order = [node for node in Graph(self.nodes.values(), tuple(self.nodes)) if node.is_tile]
        for node in reversed(order):
            if node.name not in self.gradients or node.op in (Op.DOT, Op.ENTRY):
                continue
            if node.op is Op.CHANNELS and all(not self._is_number(name) for name in node.inputs):
                continue
            gradient = self._named(node.name)
            if node.op is Op.RESTRICT:
                self._give(node.inputs[0], gradient)
                continue
            for name in node.inputs:
                if self._varies(name) and self._is_number(name):
                    self._give(name, times(gradient, self._slope_by(node, name)))

    def _slope_by(self, node: Node, name: str) -> Expr:
        """d node / d input, for a number that a node of the pair reads."""
        slope = derivative(node.value, Local(name))
        if node.name.startswith("exponent"):  # which may be kept in base two: what stands in it is natural
            return slope
        if node.op is not Op.CHANNELS:
            return substitute(slope, {node.value: Local(node.name)})
        inputs = tuple(each.name for each in walk(slope) if isinstance(each, Vector | Local))
        return Local(
            self._add(replace(node, name=f"{node.name}_by_{name}", inputs=tuple(dict.fromkeys(inputs)), expr=slope))
        )

    def _is_number(self, name: str) -> bool:
        node = self.nodes[name]
        return node.is_tile or not set(node.axes) & {Axis.FEATURE, Axis.VALUE}

    def _varies(self, name: str) -> bool:
        """Whether a node depends on an operand by way of numbers that have derivatives."""
        node = self.nodes[name]
        if node.op in (Op.DOT, Op.CHANNELS, Op.ENTRY, Op.OPERAND):
            return not self._is_fixed(node)
        return node.is_tile and any(self._varies(each) for each in node.inputs)

    def _is_fixed(self, node: Node) -> bool:
        """Whether a node is an operand without a gradient, or an entry of one."""
        return node.name in self.fixed or (node.op is Op.ENTRY and node.inputs[0] in self.fixed)

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

    def _give_values(self, share: str, values: Node) -> None:
        """The gradient of the values: the shares of a key times what arrives at its queries."""
        if self.nodes[share].op is not Op.RESTRICT and not self._vanishes(share):
            share = self._restrict(share)
        self._part(values, Op.CONTRACT, (share, "d_out"))

    def _give_operands(self) -> None:
        """What a gradient of the pair means for the operands that the pair's number is made of."""
        for node in tuple(self.nodes.values()):
            if node.name not in self.gradients or node.op not in (Op.DOT, Op.CHANNELS, Op.ENTRY, Op.OPERAND):
                continue
            if self._is_fixed(node):
                continue
            factor, kept = self._kept_gradient(node.name)
            match node.op:
                case Op.DOT:
                    for own, other in (node.inputs, node.inputs[::-1]):
                        self._part(self.nodes[own], Op.CONTRACT, (kept, other), factor=factor)
                case Op.CHANNELS:
                    for name in node.inputs:
                        if not self._is_number(name) and name not in self.fixed:
                            slope = derivative(node.value, Vector(name))
                            read = tuple(each.name for each in walk(slope) if isinstance(each, Vector | Local))
                            inputs = (kept, *dict.fromkeys(read))
                            self._part(self.nodes[name], Op.SPREAD, inputs, expr=slope, factor=factor)
                case Op.ENTRY:
                    self._part(self.nodes[node.inputs[0]], Op.SUM, (kept,), expr=node.expr, factor=factor)
                case _:
                    self._part(node, Op.SUM, (kept,), factor=factor)

    def _kept_gradient(self, name: str) -> tuple[str | None, str]:
        """A gradient as factor * node: what is the same for all pairs, and what is 0 where pairs are not related."""
        gradient = self.gradients[name]
        uniform, rest = self._split_uniform(gradient) if self.factors_last else (None, gradient)
        of_pair = f"d_{name}_pair" if self.nodes[name].op is Op.OPERAND else f"d_{name}"
        made = [
            node.name for node in self.nodes.values() if node.is_tile and node.op is Op.NUMBER and node.expr == rest
        ]
        if of_pair in self.nodes and not made:  # the whole gradient, which others read: this is a part of it
            of_pair = f"{of_pair}_rest"
        kept = made[0] if made else self._add(pair_number(of_pair, rest, self.nodes.values()))
        if not self._product_vanishes(rest):
            kept = self._restrict(kept)
        if uniform is None:
            return None, kept
        factor = "d_dot_factor" if self.nodes[name].op is Op.DOT else f"d_{name}_factor"
        if factor in self.nodes and self.nodes[factor].expr != uniform:
            factor = f"d_{name}_factor"
        self._add(number(factor, uniform, self.nodes.values()))
        return factor, kept

    def _part(
        self, operand: Node, op: Op, inputs: tuple[str, ...], *, expr: Expr | None = None, factor: str | None = None
    ) -> None:
        """One summand of an operand's gradient, named later."""
        known = self.parts.setdefault(operand.name, [])
        name = f"{gradient_name(operand.name)}_part_{len(known) + 1}"
        node = Node(name=name, op=op, axes=operand.axes, inputs=inputs, expr=expr, width=operand.width)
        if factor is not None:
            self._add(replace(node, name=f"{name}_total"))
            node = replace(node, op=Op.MULTIPLY, inputs=(f"{name}_total", factor), expr=None)
        known.append(self._add(node))

    # --- numbers in the normaliser ----------------------------------------------------------------------------

    def _numbers_of_norm(self) -> tuple[Node, ...]:
        """The operands that the normaliser reads itself, such as a sink."""
        if "norm" not in self.forward:
            return ()
        read = (self.forward[name] for name in self.forward["norm"].inputs)
        return tuple(node for node in read if node.op is Op.OPERAND and node.name not in self.fixed)

    def _give_norm(self, operands: tuple[Node, ...]) -> None:
        """-D_i dN_i/dx / N_i for each; where N_i is lowered by the peak, so is dN_i/dx."""
        norm = self.forward["norm"]
        for operand in operands:
            slope = derivative(norm.value, Local(operand.name))
            part = f"part_of_{operand.name}"
            ratio = Binary(BinaryOp.DIVIDE, slope, Local("norm"))
            guarded = Select(Compare(CompareOp.EQUAL, Local("norm"), Const(0)), Const(0), ratio)
            self.new_forward.append(number(part, guarded, self.forward))
            self._save(part)
            own = Negate(times(Local("delta"), Local(part)))
            known = self.parts.setdefault(operand.name, [])
            name = f"{gradient_name(operand.name)}_part_{len(known) + 1}"
            known.append(self._add(number(name, own, self.nodes.values())))

    def _outputs(self) -> tuple[str, ...]:
        """The gradients, each under its name: a single part takes it, several are added up."""
        order = [node.name for node in self.forward if node.op is Op.OPERAND and node.name in self.parts]
        order += [name for name in self.parts if name not in order]
        for name in order:
            parts, gradient = self.parts[name], gradient_name(name)
            if len(parts) == 1:
                self._rename(parts[0], gradient)
                continue
            first = self.nodes[parts[0]]
            self._add(Node(name=gradient, op=Op.ADD, axes=first.axes, inputs=tuple(parts), width=first.width))
        return tuple(gradient_name(name) for name in order)

    def _rename(self, part: str, gradient: str) -> None:
        """A part as the whole gradient; nothing else reads parts."""
        names = {part: gradient, f"{part}_total": f"{gradient}_total"}
        self.nodes = {
            names.get(name, name): replace(
                node, name=names.get(name, name), inputs=tuple(names.get(each, each) for each in node.inputs)
            )
            for name, node in self.nodes.items()
        }

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


def reciprocal(name: str) -> Expr:
    """1 / a number, and 0 where that is 0."""
    return Select(
        Compare(CompareOp.EQUAL, Local(name), Const(0)), Const(0), Binary(BinaryOp.DIVIDE, Const(1), Local(name))
    )


def gradient_name(operand: str) -> str:
    """The name of an operand's gradient: dq, d_bias."""
    return f"d{operand}" if len(operand) == 1 else f"d_{operand}"


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
