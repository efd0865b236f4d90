"""Calls in expressions: functions of numbers and vectors, words, and functions passed as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from attncc.diagnostics import Label
from attncc.spec.data import Data, Free
from attncc.spec.expr import (
    FALSE,
    TRUE,
    AtRow,
    Call,
    Const,
    Dot,
    Expr,
    Join,
    Let,
    Merge,
    Name,
    Output,
    OverKeys,
    Pooled,
    Reduce,
    Rotate,
    RowSum,
    Shares,
    Symbol,
    Token,
    Top,
    Type,
    UpTo,
    Width,
    children,
    type_of,
    walk,
)
from attncc.spec.fields import FieldName
from attncc.spec.fold import LARGEST_POSITION
from attncc.spec.functions import FUNCTIONS, KEY_FUNCTIONS, POOL, UP_TO, VECTOR_FUNCTIONS
from attncc.spec.names import CONSTANTS, SYMBOLS, NameScope
from attncc.spec.scope import Bindings, Bound, Function, Stop, is_truth
from attncc.spec.sides import Side, side_of
from attncc.spec.words import nearest
from attncc.syntax import tree

_TOP = "write `top(8, by = score, among = causal)`"
_MOST_CHOSEN = 4096


class CallScope(NameScope):
    """Resolves calls."""

    def call(self, node: tree.Call, bindings: Bindings, where: FieldName) -> Expr:
        """`name(arguments)`"""
        name = node.name
        if name.text in bindings:
            match bindings[name.text]:
                case None:
                    raise Stop
                case Function() as function:
                    return self._apply(function, node, bindings, where)
        elif name.text == "top":
            return self._top(node, bindings, where)
        elif name.text == "shares":
            note = "it says what keys get in a branch, by which others are chosen"
            help_ = "write `let best = top(8, by = shares(near))` in a branch below `near`"
            self.fail("E207", "`shares` stands in `top` alone", name.span, notes=(note,), helps=(help_,))
        elif name.text == "rows" and where is FieldName.NORMALIZE:
            return self._row_sum(node, bindings)
        elif name.text == "merge" and where is FieldName.COMBINE:
            return self._merge(node, bindings)
        elif name.text in VECTOR_FUNCTIONS:
            return self._of_vectors(node, bindings, where)
        elif name.text in KEY_FUNCTIONS:
            return self._over_keys(node, bindings, where)
        elif name.text == UP_TO:
            return self._up_to(node, bindings, where)
        elif name.text == POOL:
            return self._pool(node, bindings, where)
        elif name.text in FUNCTIONS:
            return self._function(node, bindings, where)
        elif (word := self.words.patterns.get(name.text) or self.words.functions.get(name.text)) is not None:
            return self.expand(word, bindings, node, where)
        elif name.text == "rows":
            self.unreadable("rows", name.span, where)
        self._no_function(name, bindings)

    def _no_function(self, name: tree.Identifier, bindings: Bindings) -> NoReturn:
        if name.text in self._own_parameters() and isinstance(bindings.get(name.text), Expr):
            help_ = "pass the name of a function, or one of its own: `x -> elu(x) + 1`"
            message = f"`{self._open[-1]}` calls `{name.text}`, but is given no function for it"
            self.fail("E206", message, name.span, text="no function", helps=(help_,))
        if name.text in bindings or name.text in SYMBOLS or name.text in CONSTANTS:
            help_ = f"write `{name.text}`, or `{name.text} * (…)` for a product"
            self.fail(
                "E206", f"`{name.text}` takes no arguments", name.span, text="no word or function", helps=(help_,)
            )
        known = {
            *self.words.patterns,
            *self.words.functions,
            *FUNCTIONS,
            *VECTOR_FUNCTIONS,
            *KEY_FUNCTIONS,
            POOL,
            UP_TO,
        }
        if name.text in self.words.similarities:
            help_ = f"write `similarity = {name.text}(…)`"
            self.fail("E201", f"`{name.text}` is a similarity, not a function", name.span, helps=(help_,))
        message = f"there is no word or function `{name.text}`"
        self.fail("E201", message, name.span, text="unknown name", helps=nearest(name.text, known))

    def _own_parameters(self) -> tuple[str, ...]:
        """The parameters of the innermost word that is being expanded."""
        name = self._open[-1] if self._open else ""
        tables = (self.words.patterns, self.words.functions, self.words.similarities)
        word = next((table[name] for table in tables if name in table), None)
        return tuple(each.name.text for each in word.parameters) if word is not None else ()

    # --- functions of the language ----------------------------------------------------------------------------

    def _positional(self, node: tree.Call) -> list[tree.Tree]:
        """The arguments of a function of the language, which have no names."""
        found: list[tree.Tree] = []
        for argument in node.arguments:
            match argument:
                case tree.NamedArgument(span=span):
                    self.fail("E206", f"`{node.name.text}` takes no named arguments", span)
                case value:
                    found.append(value)
        return found

    def _function(self, node: tree.Call, bindings: Bindings, where: FieldName) -> Expr:
        name = node.name
        function = FUNCTIONS[name.text]
        arguments = [self.as_value(each, bindings, where) for each in self._positional(node)]
        wanted = function.arity
        if (wanted is not None and len(arguments) != wanted) or (wanted is None and len(arguments) < 2):
            count = "two or more arguments" if wanted is None else f"{wanted} argument{'s' * (wanted != 1)}"
            helps = (f"write `{name.text}({', '.join('xyz'[: wanted or 2])})`",)
            self.fail("E206", f"`{name.text}` takes {count}, but {_given(len(arguments))}", node.span, helps=helps)
        return Call(name.text, tuple(arguments), span=node.span)

    def _of_vectors(self, node: tree.Call, bindings: Bindings, where: FieldName) -> Expr:
        """Functions whose arguments are vectors."""
        name, span = node.name.text, node.span
        if where in (FieldName.PATTERN, FieldName.REQUIRE):
            self.unreadable(name, span, where)
        if name == "argmax" and where is not FieldName.LET:
            note = "what it gives is a choice, and needs a name"
            help_ = "write `let name = argmax(…)` above, and read `name` here"
            self.fail("E207", f"`argmax` cannot be read in `{where.value}`", span, notes=(note,), helps=(help_,))
        wanted = VECTOR_FUNCTIONS[name].arity
        given = self._positional(node)
        if len(given) != wanted:
            helps = ("write `dot(q, k)`",) if name == "dot" else ()
            count = "two vectors" if wanted == 2 else "one vector"
            self.fail("E206", f"`{name}` takes {count}, but {_given(len(given))}", span, helps=helps)
        vectors = [self.as_vector(each, bindings, where) for each in given]
        match name:
            case "dot":
                return Dot(vectors[0], vectors[1], span=span)
            case "join":
                return Join(vectors[0], vectors[1], span=span)
            case "sum" | "largest" | "argmax":
                return Reduce(name, vectors[0], span=span)
            case "width":
                return Width(vectors[0], span=span)
            case "rotate_half" | "rotate_pairs":
                return Rotate(name.removeprefix("rotate_"), vectors[0], span=span)
        raise TypeError(f"no meaning for {name}")

    def _over_keys(self, node: tree.Call, bindings: Bindings, where: FieldName) -> Expr:
        """A function of what each key has."""
        name, span = node.name.text, node.span
        if where is not FieldName.LET:
            note = "it runs over all keys, once for all pairs, and what it gives needs a name"
            helps = (f"write `let name = {name}(…)` above, and read `name[j]` or `name[i]` here",)
            self.fail("E207", f"`{name}` cannot be read in `{where.value}`", span, notes=(note,), helps=helps)
        given = self._positional(node)
        if len(given) != 1:
            helps = (f"write `{name}(k)`",)
            self.fail("E206", f"`{name}` takes one argument, but {_given(len(given))}", span, helps=helps)
        value = self.as_value(given[0], bindings, where)
        side = side_of(value, self.data(bindings))
        if side is not Side.COLUMN:
            found = "depends on no token" if side is Side.NONE else f"belongs to {side.value}"
            axes = ("declare it with an axis m, for instance `input g[B, H, m]`",) if side is not Side.PAIR else ()
            text = "expected something of each key"
            self.fail("E205", f"`{name}` is of keys, but this {found}", given[0].span, text=text, helps=axes)
        if KEY_FUNCTIONS[name].of_whole and type_of(value) is not Type.INT:
            found = "a vector" if type_of(value) is Type.VECTOR else "a real number"
            rounded = ("round it: `floor(…)`",) if found == "a real number" else ()
            text, message = "expected a whole number of each key", f"`{name}` is of whole numbers, but this is {found}"
            self.fail("E209", message, given[0].span, text=text, helps=rounded)
        return OverKeys(name, value, span=span)

    def _up_to(self, node: tree.Call, bindings: Bindings, where: FieldName) -> Expr:
        """How many numbers of a list are at most a number."""
        given = self._positional(node)
        helps = ("declare `input ends[any]: int ascending` and write `up_to(ends, j)`",)
        if len(given) != 2:
            message = f"`{UP_TO}` takes a list that ascends and a number, but {_given(len(given))}"
            self.fail("E206", message, node.span, helps=helps)
        listed = bindings.get(given[0].name) if isinstance(given[0], tree.Reference) else None
        if not isinstance(listed, Data) or listed.axes != (Free(),) or not listed.ascending:
            text = "expected a list such as `input ends[any]: int ascending`"
            self.fail("E205", f"`{UP_TO}` looks a list up, but this is none that ascends", given[0].span, text=text)
        return UpTo(listed.name, self.as_number(given[1], bindings, where), span=node.span)

    def _pool(self, node: tree.Call, bindings: Bindings, where: FieldName) -> Expr:
        """The mean of the keys of a block, one for each `stride` keys."""
        if where is not FieldName.LET:
            note = "it gives fewer keys than there are, and what it gives needs a name"
            helps = ("write `let k = pool(k, 16) at 16 * j + 15` above",)
            self.fail("E207", f"`{POOL}` cannot be read in `{where.value}`", node.span, notes=(note,), helps=helps)
        given = self._positional(node)
        if len(given) not in (2, 3):
            helps = ("write `pool(k, width)`, or `pool(k, width, stride)`",)
            message = f"`{POOL}` takes something of keys, a width and perhaps a stride, but {_given(len(given))}"
            self.fail("E206", message, node.span, helps=helps)
        value = self.as_value(given[0], bindings, where)
        if side_of(value, self.data(bindings)) is not Side.COLUMN:
            self.fail("E205", f"`{POOL}` is of keys, but this is not", given[0].span, text="expected something of keys")
        if any(isinstance(each, Pooled) for each in walk(value)):
            self.fail(
                "E205", "what is pooled already is not pooled again", given[0].span, text="made of blocks of keys"
            )
        sizes = [self._size(each, bindings) for each in given[1:]]
        return Pooled(value, sizes[0], sizes[-1], span=node.span)

    def _size(self, node: tree.Tree, bindings: Bindings) -> int:
        value = self.as_number(node, bindings, FieldName.LET)
        if not isinstance(value, Const) or not isinstance(value.value, int) or not 0 < value.value <= LARGEST_POSITION:
            text = "expected a whole number of at least 1"
            self.fail(
                "E209",
                "the width of a block is a whole number that is known when the spec is built",
                node.span,
                text=text,
            )
        return value.value

    def _top(self, node: tree.Call, bindings: Bindings, where: FieldName) -> Expr:
        """`top(8, by = score, among = window(47))`, under the name `top`."""
        span = node.span
        if where is not FieldName.PATTERN:
            help_ = "write `let best = top(…)`, and read `best` in `pattern`"
            note = "it says which pairs are related"
            self.fail("E207", f"`top` cannot be read in `{where.value}`", span, notes=(note,), helps=(help_,))
        given: dict[str, tree.Tree] = {}
        for at, argument in enumerate(node.arguments):
            match argument:
                case tree.NamedArgument(name=name, value=value) if name.text in ("by", "among", "blocks", "heads"):
                    given[name.text] = value
                case tree.NamedArgument(name=name):
                    self.fail("E206", f"`top` has no argument `{name.text}`", name.span, helps=(_TOP,))
                case value if at == 0:
                    given["count"] = value
                case value:
                    self.fail("E206", "`top` takes one argument without a name", value.span, helps=(_TOP,))
        if "count" not in given:
            self.fail("E206", "`top` needs to be told how many keys it takes", span, helps=(_TOP,))
        count = self.as_number(given["count"], bindings, FieldName.REQUIRE)
        if not isinstance(count, Const) or not isinstance(count.value, int) or not 0 < count.value <= _MOST_CHOSEN:
            text = f"expected a whole constant from 1 to {_MOST_CHOSEN}"
            self.fail("E212", "`top` takes so many keys as a constant says", given["count"].span, text=text)
        by: Expr = Symbol(Name.SCORE, span=span)
        match given.get("by"):
            case tree.Call(name=tree.Identifier(text="shares")) as shares:
                by = self._shares(shares, bindings)
            case number if number is not None:
                by = self.as_number(number, bindings, FieldName.WEIGHT)
        among: Expr = TRUE
        if "among" in given:
            among = self.as_predicate(given["among"], bindings, FieldName.PATTERN)
        chosen = Top(int(count.value), by, among, self._blocks_of(given, by, among, bindings), span=span)
        if "heads" in given:
            heads = given["heads"]
            if not isinstance(heads, tree.Reference) or heads.name != "grouped":
                text = "expected `grouped`"
                help_ = (
                    "`heads = grouped`: heads that share a key head choose together; leave it out for each by itself"
                )
                self.fail("E206", "`heads` says which heads choose together", heads.span, text=text, helps=(help_,))
            chosen = replace(chosen, grouped=True)
        inner = next((each for part in (by, among) for each in walk(part) if isinstance(each, Top)), None)
        counts = not isinstance(by, Shares) and any(each == Symbol(Name.COUNT) for each in walk(by))
        if inner is not None or counts:
            found = "another `top`" if inner is not None else "`count`"
            note = "keys are chosen before pairs are known, and once"
            self.fail("E207", f"`top` cannot be made of {found}", span, notes=(note,))
        return Let("top", chosen, span=span)

    def _shares(self, node: tree.Call, bindings: Bindings) -> Shares:
        """`shares(near)`: what keys get in a branch that stands above."""
        match node.arguments:
            case (tree.Reference(name=name, span=span),):
                found = self.branches.get(name)
            case _:
                self.fail("E206", "`shares` takes a branch", node.span, helps=("write `shares(near)`",))
        if found is None:
            known = " or ".join(f"`{each}`" for each in self.branches)
            text = f"expected {known}" if known else "expected a branch that stands above this one"
            note = "a branch chooses by what a branch above it gives to keys"
            self.fail("E201", f"there is no branch `{name}` above", span, text=text, notes=(note,))
        if isinstance(found, str):
            self.fail("E207", f"the shares of `{name}` cannot be read", span, notes=(found,))
        return replace(found, span=node.span)

    def _blocks_of(self, given: Mapping[str, tree.Tree], by: Expr, among: Expr, bindings: Bindings) -> int:
        """How many keys `top` chooses together."""
        node = given.get("blocks")
        block = 1 if node is None else self._size(node, bindings)
        place = node or given.get("by")
        if place is None:
            return block
        if isinstance(by, Shares) and by.width and block % by.stride:
            text = f"expected a multiple of {by.stride}"
            note = f"`{by.branch}` has a block of keys for each {by.stride}, which `top` puts together"
            self.fail("E306", "blocks that are chosen are made of others", place.span, text=text, notes=(note,))
        if block == 1:
            return block
        if not isinstance(by, Shares):
            note = "the number of a block is the sum of those of its keys, which an attention gives to them"
            helps = (
                "write `branch near { weight = …; normalize = none }`, and `by = shares(near)` in a branch below it",
            )
            self.fail("E207", "`by` is no number of blocks", place.span, notes=(note,), helps=helps)
        data = self.data(bindings)
        for each in walk(among):
            if isinstance(each, Token) and data[each.name].is_column and not _is_at_row(among, each):
                note = "`among` is asked of blocks, and `j` is the first key of each"
                self.fail(
                    "E306", f"`{each.name}` has one for each key", each.span or place.span, text="", notes=(note,)
                )
        return block

    def _row_sum(self, node: tree.Call, bindings: Bindings) -> Expr:
        match node.arguments:
            case (weight,) if not isinstance(weight, tree.NamedArgument):
                return RowSum(self.as_number(weight, bindings, FieldName.WEIGHT), span=node.span)
        given = len(node.arguments)
        helps = ("write `rows(w)`, or `rows` for the weight of the attention",)
        self.fail("E206", f"`rows(w)` takes one weight without a name, but {_given(given)}", node.span, helps=helps)

    def _merge(self, node: tree.Call, bindings: Bindings) -> Expr:
        names: list[str] = []
        for argument in self._positional(node):
            bound = bindings.get(argument.name) if isinstance(argument, tree.Reference) else None
            if not isinstance(bound, Output):
                text = "expected the name of a branch"
                self.fail("E206", "`merge` takes branches, but this is none", argument.span, text=text)
            if bound.branch in names:
                self.fail("E206", f"`merge` is given the branch `{bound.branch}` twice", argument.span)
            names.append(bound.branch)
        if len(names) < 2:
            self.fail("E206", f"`merge` takes two or more branches, but {_given(len(names))}", node.span)
        return Merge(tuple(names), span=node.span)

    # --- words ------------------------------------------------------------------------------------------------

    def expand(self, word: tree.Word, bindings: Bindings, call: tree.Call, where: FieldName) -> Expr:
        """A word's body with its arguments put in."""
        if word.name.text in self._open:
            chain = " → ".join([*self._open[self._open.index(word.name.text) :], word.name.text])
            defined = Label(word.name.span, "defined here")
            note = f"{chain}; words are replaced by their bodies, so none may contain itself"
            self.fail("E213", f"the word `{word.name.text}` uses itself", call.span, defined, notes=(note,))
        inner = {**self.words.scope_of(word), **self._arguments(word.name, word.parameters, call, bindings, where)}
        with self.within(word.name.text, call.span):
            wanted = self.as_predicate if word.kind == "pattern" else self.as_value
            return wanted(word.body, inner, where)

    def _apply(self, function: Function, node: tree.Call, bindings: Bindings, where: FieldName) -> Expr:
        """A function that came as an argument."""
        if function.body is None or function.parameter is None or function.scope is None:
            name = tree.Identifier(function.name, span=node.name.span)
            return self.call(tree.Call(name, node.arguments, span=node.span), _without(bindings, function.name), where)
        given = self._positional(node)
        if len(given) != 1:
            passed = Label(function.span, "passed here")
            message = f"`{node.name.text}` takes one argument, but {_given(len(given))}"
            self.fail("E206", message, node.span, passed)
        inner = {**function.scope, function.parameter: self.as_value(given[0], bindings, where)}
        with self.within(node.name.text, node.span):
            return self.as_value(function.body, inner, where)

    def _argument(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Bound:
        """What a word is given: a value, a truth value of the data, a table, or a function."""
        match node:
            case tree.Lambda(parameter=parameter, body=body, span=span):
                self.free_name(parameter)
                return Function(parameter.text, span, parameter.text, body, bindings)
            case tree.Reference(name=name, span=span):
                bound = bindings.get(name)
                if isinstance(bound, Function) or (isinstance(bound, Data) and not bound.is_token and bound.indexed):
                    return bound
                functions = {*FUNCTIONS, *VECTOR_FUNCTIONS, *KEY_FUNCTIONS, *self.words.functions}
                if name not in bindings and name not in SYMBOLS and name not in CONSTANTS and name in functions:
                    return Function(name, span)
            case tree.Index() if (matrix := self.matrix(node, bindings, where)) is not None:
                return matrix
        given = self.expr(node, bindings, where)
        if is_truth(given) or given in (TRUE, FALSE):
            return given
        return self.checked_value(given, node, where)

    def _arguments(
        self,
        word: tree.Identifier,
        parameters: tuple[tree.Parameter, ...],
        call: tree.Call,
        bindings: Bindings,
        where: FieldName,
    ) -> dict[str, Bound]:
        given: dict[str, tree.Tree] = {}
        names = [parameter.name.text for parameter in parameters]
        for at, argument in enumerate(call.arguments):
            if isinstance(argument, tree.NamedArgument):
                name, value = argument.name.text, argument.value
                if name not in names:
                    helps = nearest(name, names)
                    self.fail("E206", f"`{word.text}` has no argument `{name}`", argument.name.span, helps=helps)
            elif at >= len(names):
                takes = f"takes {len(names)} argument{'s' * (len(names) != 1)}" if names else "takes no arguments"
                self.fail("E206", f"`{word.text}` {takes}, but {len(call.arguments)} are given", argument.span)
            else:
                name, value = names[at], argument
            if name in given:
                first = Label(given[name].span, "given first here")
                self.fail("E206", f"`{word.text}` is given `{name}` twice", argument.span, first)
            given[name] = value
        inner: dict[str, Bound] = {}
        for parameter in parameters:
            name = parameter.name.text
            if name in given:
                inner[name] = self._argument(given[name], bindings, where)
                span = given[name].span
            elif parameter.default is not None:
                inner[name] = self._argument(parameter.default, inner, where)
                span = parameter.span
            else:
                declared = Label(parameter.span, "declared here")
                text = f"expected a value for `{name}`"
                self.fail("E206", f"`{word.text}` needs a value for `{name}`", call.span, declared, text=text)
            bound = inner[name]
            if parameter.type is None or parameter.type.text != "int":
                continue
            if not isinstance(bound, Expr) or type_of(bound) is not Type.INT:
                declared = Label(parameter.span, "declared here")
                kinds = {Type.REAL: "a real one", Type.BOOL: "a truth value"}
                found = kinds.get(type_of(bound), "none") if isinstance(bound, Expr) else "none"
                message = f"`{word.text}` wants a whole number for `{name}`, but this is {found}"
                self.fail("E209", message, span, declared, text="expected a whole number")
        return inner


def _is_at_row(expr: Expr, token: Token) -> bool:
    """Whether a number of keys is read at the query alone."""
    if expr == token:
        return False
    return isinstance(expr, AtRow) or all(_is_at_row(each, token) for each in children(expr))


def _without(bindings: Bindings, name: str) -> Bindings:
    """The scope in which a function of the language has its own meaning again."""
    return {each: bound for each, bound in bindings.items() if each != name}


def _given(count: int) -> str:
    return "1 is given" if count == 1 else f"{count} are given"
