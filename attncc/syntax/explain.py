"""Why a token does not fit: the place where parsing stopped → a diagnostic in the user's own terms."""

from __future__ import annotations

from attncc.diagnostics import Diagnostic
from attncc.syntax import explain_expressions as expressions
from attncc.syntax import explain_statements as statements
from attncc.syntax.mistake import Mistake

_CASES = (
    statements.value_missing,
    statements.header,
    statements.outside_only,
    statements.keyword,
    statements.name_missing,
    statements.path_missing,
    statements.parameter_names,
    statements.outside,
    statements.field,
    statements.data,
    expressions.foreign_word,
    expressions.number,
    expressions.lambda_,
    expressions.exists,
    expressions.by_head,
    statements.two_statements,
    expressions.open_bracket,
    expressions.operand,
    expressions.choices,
)


def explain(mistake: Mistake) -> Diagnostic:
    """The diagnostic for a mistake: the most telling of the known ones."""
    for case in _CASES:
        found = case(mistake)
        if found is not None:
            return found
    return expressions.plain(mistake)
