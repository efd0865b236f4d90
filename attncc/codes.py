"""Every diagnostic code, with the title that tests and documentation use."""

from __future__ import annotations

CODES: dict[str, str] = {
    "E101": "a token does not fit",
    "E102": "the text ends too early",
    "E103": "a character has no meaning",
    "E104": "the text is too long or too deeply nested",
    "E201": "an unknown name",
    "E202": "a field that is unknown or missing, or an unknown choice",
    "E203": "something is defined twice",
    "E204": "an expression of the wrong kind: number, predicate or word",
    "E205": "a vector where a number is wanted, or a dot product of the wrong vectors",
    "E206": "arguments that do not fit",
    "E207": "a name that cannot be read here",
    "E208": "a parameter without a value",
    "E209": "a parameter value that does not fit",
    "E210": "a requirement that does not hold",
    "E211": "a predicate that is not affine",
    "E212": "a constant expression without a value",
    "E213": "a word that uses itself, or an expression that grows too large",
    "E214": "fields that contradict each other",
    "E215": "not exactly one attention",
    "E216": "a list of constants or declared data that cannot be indexed so",
    "E217": "a name that an emitted module cannot have",
    "E218": "a declaration that does not fit",
    "E219": "a used file that cannot be found, or that uses itself",
    "E301": "a pattern that relates no pair",
    "E302": "a vector of a pair where one of a token is needed",
    "E303": "branches that cannot be merged",
    "W301": "an exponential that can overflow",
    "E901": "a file cannot be read or written",
}
