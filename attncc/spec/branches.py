"""`branch name { … }` and `combine = …` → several attentions and the vector made of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from keyword import iskeyword

from attncc.diagnostics import Diagnostic, Label
from attncc.spec.body import BodyResolver
from attncc.spec.channels import CHANNELS
from attncc.spec.choices import is_choice
from attncc.spec.core_fields import FieldResolver, needed
from attncc.spec.data import RESERVED, Data
from attncc.spec.expr import Expr, Or, Output, Shares, Type, type_of, walk
from attncc.spec.expressions import ExpressionResolver
from attncc.spec.fields import FieldName
from attncc.spec.model import Spec
from attncc.spec.scope import Bound, data_of
from attncc.spec.sides import Side, side_of
from attncc.spec.words import Words, taken
from attncc.syntax import tree

_MOST = 8
_RESERVED = RESERVED | {"out", "options"}  # what the emitted function holds beside the outputs of branches
_OUTSIDE = (FieldName.ALIGN, FieldName.COMBINE)  # fields of the attention as a whole
_OF_WEIGHT = (FieldName.WEIGHT, FieldName.NORMALIZE)


class BranchResolver:
    """Resolves the branches of one attention. What the attention sets, each branch has until it sets its own."""

    def __init__(
        self,
        attention: tree.Attention,
        fields: FieldResolver,
        words: Words,
        bindings: dict[str, Bound | None],
        errors: list[Diagnostic],
    ) -> None:
        self.fields = fields
        self.words = words
        self.bindings = bindings
        self.errors = errors
        self.branches = tuple(each for each in attention.statements if isinstance(each, tree.Branch))
        self.attention = attention
        self.shares: dict[str, Shares | str] = {}

    @property
    def exist(self) -> bool:
        """Whether there are any."""
        return bool(self.branches)

    def combined(self, outer: dict[FieldName, tree.Field], base: Spec, declared: Sequence[Data]) -> Spec:
        """The attention with its branches."""
        found: dict[str, Spec] = {}
        for branch in self.branches:
            if self._is_free(branch.name, found):
                spec = self._branch(branch, outer, base)
                self.shares[branch.name.text] = _shares(branch.name.text, spec, declared)
                found[branch.name.text] = replace(spec, data=needed(spec, declared))
        combine = self._combine(outer, {branch.name.text: branch for branch in self.branches})
        read = {each.name: each for spec in found.values() for each in spec.data}
        data = tuple(each for each in (*data_of({}).values(), *declared) if each.name in read or each in declared)
        pattern = Or(tuple(spec.pattern for spec in found.values()))
        spec = replace(base, pattern=pattern, data=data, branches=tuple(found.items()), combine=combine)
        return spec

    def _is_free(self, name: tree.Identifier, found: dict[str, Spec]) -> bool:
        before = len(self.errors)
        self.errors += taken(name)
        if name.text in self.bindings or name.text in found:
            self._error("E203", f"`{name.text}` is defined twice", Label(name.span, "defined again here"))
        if iskeyword(name.text) or name.text.startswith("_") or name.text in _RESERVED:
            label = Label(name.span, "expected another name")
            if iskeyword(name.text):
                why = f", and `{name.text}` is a keyword of Python"
            elif name.text.startswith("_"):
                why = ", and names that begin with `_` are those of its helpers"
            else:
                why = f", in which `{name.text}` means something else"
            note = f"it becomes a variable of a Python function{why}"
            self._error("E217", f"a branch cannot be named `{name.text}`", label, notes=(note,))
        if len(found) >= _MOST:
            self._error("E218", f"more than {_MOST} branches", Label(name.span, "one branch too many"))
        return len(self.errors) == before

    def _branch(self, branch: tree.Branch, outer: dict[FieldName, tree.Field], base: Spec) -> Spec:
        bindings = dict(self.bindings)
        words = self.words.seen_from(bindings)
        expressions = ExpressionResolver(self.fields.source, words, self.errors)
        expressions.used = self.fields.expressions.used
        expressions.declared = self.fields.expressions.declared
        expressions.branches = self.shares
        for statement in branch.statements:
            if isinstance(statement, tree.Declaration | tree.Branch | tree.Require):
                what = "data are declared" if isinstance(statement, tree.Declaration) else "this stands"
                label = Label(statement.span, "expected a field, a value or a word")
                help_ = "move it out of the branch"
                self._error("E218", f"{what} in the attention, not in a branch", label, helps=(help_,))
        BodyResolver(words, expressions, self.errors, bindings).define(branch.statements)
        fields = self.fields.within(words, expressions)
        allowed = tuple(each for each in FieldName if each not in _OUTSIDE)
        own = fields.fields(branch.statements, allowed)
        if FieldName.SIMILARITY in own:
            outer = {name: each for name, each in outer.items() if name not in _OF_WEIGHT}
        if any(name in own for name in _OF_WEIGHT):
            outer = {name: each for name, each in outer.items() if name is not FieldName.SIMILARITY}
        return fields.core({**outer, **own}, bindings, replace(base, span=branch.span))

    def _combine(self, outer: dict[FieldName, tree.Field], branches: dict[str, tree.Branch]) -> Expr | None:
        if FieldName.COMBINE not in outer:
            label = Label(self.branches[-1].name.span, "branches are made one vector by `combine`")
            helps = (f"write `combine = {' + '.join(branches)}`", f"or `combine = merge({', '.join(branches)})`")
            self._error("E202", "the attention has branches, but no `combine`", label, helps=helps)
            return None
        field = outer[FieldName.COMBINE]
        if not branches:
            help_ = "write `branch name { … }`, or leave `combine` out"
            self._error("E202", "there is nothing to combine", Label(field.name.span, "no branch"), helps=(help_,))
            return None
        bindings: dict[str, Bound | None] = {**self.bindings}
        bindings |= {name: Output(name, span=branch.name.span) for name, branch in branches.items()}
        value = self.fields.expressions.vector(field.value, bindings, FieldName.COMBINE)
        if value is not None and side_of(value, data_of(bindings)) is not Side.ROW:
            label = Label(field.value.span, "expected a vector of the query")
            note = "outputs belong to queries, and so must all that they are combined with"
            self._error("E205", "`combine` makes a vector of the query, but this is none", label, notes=(note,))
            return None
        return value

    def _error(
        self, code: str, message: str, *labels: Label, notes: tuple[str, ...] = (), helps: tuple[str, ...] = ()
    ) -> None:
        self.errors.append(Diagnostic(code, message, labels, notes, helps))


def _shares(name: str, spec: Spec, declared: Sequence[Data]) -> Shares | str:
    """What a branch gives to keys, or why nothing else can be chosen by that."""
    fields = (spec.pattern, spec.score, spec.weight, spec.normalizer)
    if any(is_choice(each) for field in fields for each in walk(field)):
        return "it makes choices of its own, and those that are made of others are not known"
    if spec.normalizer == CHANNELS:
        return "it divides each feature by a sum of its own, and keys get no share as a whole"
    data = {each.name: each for each in (*data_of({}).values(), *declared)}
    vectors = (each for field in fields for each in walk(field) if type_of(each) is Type.VECTOR)
    keys = next((each for each in vectors if side_of(each, data) is Side.COLUMN), spec.value)
    blocks = () if spec.blocks is None else (spec.blocks.width, spec.blocks.stride, spec.blocks.at)
    return Shares(name, *fields, keys, *blocks)
