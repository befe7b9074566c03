"""What could be wrong with this code? Small changes of the syntax tree, one per mutant, that a test should notice.

Only bodies of functions are mutated: what stands at the level of a module or a class declares values, and is judged by
the tests of what uses it. What no decision depends on is left alone: messages (f-strings, arguments of `raise` and of
the keywords in MESSAGES), logging, `__repr__`, annotations, decorators.
"""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

LOGGERS = frozenset({"log", "logger", "logging", "progress", "warnings", "_log", "_logger", "LOG", "_LOG"})
MESSAGES = frozenset({"detail", "fix", "hint", "message", "note", "text", "title"})  # keywords that people read
ASSERTIONS = frozenset({"strict"})  # of `zip`: like `assert`, it fails for what never happens
# Functions on which no decision depends. `warm` compiles kernels ahead of their first use, and its results are dropped.
UNREAD = frozenset({"__repr__", "__str__", "__rich__", "__rich_repr__", "warm"})

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_MAKERS = frozenset({"__init__", "__post_init__"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. `id` names the function and counts inside of it, so edits elsewhere leave it as it is."""

    path: str  # below the source folder
    id: str
    function: str  # the outermost one, which is compiled anew
    function_line: int  # of its code object: the first decorator's, if it has one
    statement: tuple[int, int]  # line and column: the tests that run it judge the mutant
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class _Site:
    operator: str
    node: ast.AST
    before: str
    after: str
    apply: Callable[[], None]


def mutants_of(source: str, path: str) -> list[Mutant]:
    return [mutant for mutant, _ in _sites(ast.parse(source), path)]


def mutate(source: str, path: str, mutant_id: str) -> ast.Module:
    """The tree of the module with this one change; line numbers stay. KeyError if there is no such mutant."""
    tree = ast.parse(source)
    for mutant, site in _sites(tree, path):
        if mutant.id == mutant_id:
            site.apply()
            return ast.fix_missing_locations(tree)
    raise KeyError(mutant_id)


def draw(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """`count` of them, each as likely as any other; the same for the same seed, whatever order they come in."""
    ordered = sorted(mutants, key=lambda mutant: mutant.id)
    if count >= len(ordered):
        return ordered
    return random.Random(seed).sample(ordered, count)


def _sites(tree: ast.Module, path: str) -> Iterator[tuple[Mutant, _Site]]:
    """Lazily: nothing of a site is looked at after it was handed out, so it may be applied at once."""
    module = path.removesuffix(".py").replace("/", ".")
    seen: Counter[str] = Counter()
    for name, outer in _outermost(tree.body, ""):
        line = min((outer.lineno, *(decorator.lineno for decorator in outer.decorator_list)))
        for statement, site in _in_block(outer.body, outer):
            key = f"{module}:{name}:{site.operator}"
            seen[key] += 1
            yield (
                Mutant(
                    path,
                    f"{key}:{seen[key]}",
                    name,
                    line,
                    (statement.lineno, statement.col_offset),
                    getattr(site.node, "lineno", statement.lineno),
                    site.before,
                    site.after,
                ),
                site,
            )


def _outermost(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, _Function]]:
    """Functions of a module and methods of its classes; what they define inside belongs to them."""
    for node in body:
        if isinstance(node, _FUNCTIONS):
            if node.name not in UNREAD and not _is_declaration(node):
                yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            if not any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
                yield from _outermost(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If) and not _is_type_checking(node.test):
            yield from _outermost([*node.body, *node.orelse], prefix)
        elif isinstance(node, ast.Try):
            yield from _outermost([*node.body, *node.orelse, *node.finalbody], prefix)


def _in_block(block: list[ast.stmt], function: _Function) -> Iterator[tuple[ast.stmt, _Site]]:
    """The sites of these statements and of all inside of them. `function` is the innermost one around."""
    for place, statement in enumerate(list(block)):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring, or `...`
        if isinstance(statement, (ast.Raise, ast.Import, ast.ImportFrom, ast.ClassDef)) or _is_logging(statement):
            continue
        if isinstance(statement, _FUNCTIONS):
            yield from _in_block(statement.body, statement)
            continue
        for site in _of_statement(statement, block, place, function):
            yield statement, site
        for node in _own_parts(statement):
            for site in _of_expression(node):
                yield statement, site
        for inner in _blocks(statement):
            yield from _in_block(inner, function)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for _, value in ast.iter_fields(statement):
        for child in value if isinstance(value, list) else ():
            if isinstance(child, ast.stmt):
                yield value
                break
            if isinstance(child, (ast.ExceptHandler, ast.match_case)):
                yield child.body


def _own_parts(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of the statement itself; those of statements inside of it are theirs."""
    for name, value in ast.iter_fields(statement):
        if name == "annotation":
            continue
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.expr):
                yield child
            elif isinstance(child, ast.withitem):
                yield child.context_expr
            elif isinstance(child, ast.match_case) and child.guard is not None:
                yield child.guard


def _of_statement(node: ast.stmt, block: list[ast.stmt], place: int, function: _Function) -> Iterator[_Site]:
    drop = _put(block, place, ast.copy_location(ast.Pass(), node))
    match node:
        case ast.If(body=[ast.Raise() | ast.Return() | ast.Continue() | ast.Break() as leave], orelse=[]):
            yield _Site("guard", node, f"if {_text(node.test)}: {_text(leave)}", "pass", drop)
        case ast.Expr(value=ast.Call() | ast.Await() as call) if not _is_super(call):
            yield _Site("call", node, _text(node), "pass", drop)
        case ast.Assign(targets=targets) if function.name not in _MAKERS:
            if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in targets):
                yield _Site("assignment", node, _text(node), "pass", drop)
        case ast.AugAssign() if (other := _ARITHMETIC.get(type(node.op))) and not _is_text(node.value):
            after = _text(ast.AugAssign(node.target, other(), node.value))
            yield _Site("arithmetic", node, _text(node), after, _set(node, "op", other()))
        case ast.Return(value=ast.expr() as value):
            yield from _of_return(node, value, _text(function.returns) if function.returns else "")
    if isinstance(node, (ast.If, ast.While)):
        yield from _negated(node.test, lambda test: _set(node, "test", test))


def _of_return(node: ast.Return, value: ast.expr, returned: str) -> Iterator[_Site]:
    if returned == "bool":
        if not isinstance(value, (ast.Compare, ast.Constant)):  # both are mutated themselves
            yield from _negated(value, lambda negation: _set(node, "value", negation), "return")
        return
    is_reason = "None" in returned or not _is_text(value)  # a text that may be None is one; any other is a message
    if is_reason and not (isinstance(value, ast.Constant) and value.value is None):
        yield _Site("return", node, _text(node), "return None", _set(node, "value", ast.Constant(None)))


def _of_expression(node: ast.expr) -> Iterator[_Site]:
    match node:
        case ast.JoinedStr():
            return
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                other = _COMPARE[type(operator)]()
                operators = [*node.ops[:place], other, *node.ops[place + 1 :]]
                after = _text(ast.Compare(node.left, operators, node.comparators))
                yield _Site("compare", node, _text(node), after, _put(node.ops, place, other))
        case ast.BoolOp():
            swapped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield _Site(
                "boolean", node, _text(node), _text(ast.BoolOp(swapped, node.values)), _set(node, "op", swapped)
            )
        case ast.BinOp() if (operation := _ARITHMETIC.get(type(node.op))) and not _is_text(node.left, node.right):
            after = _text(ast.BinOp(node.left, operation(), node.right))
            yield _Site("arithmetic", node, _text(node), after, _set(node, "op", operation()))
        case ast.Call(func=ast.Name(id=name) as callee) if name in _CALLS:
            after = _text(ast.Call(ast.Name(_CALLS[name]), node.args, node.keywords))
            yield _Site("call name", node, _text(node), after, _set(callee, "id", _CALLS[name]))
        case ast.IfExp() if isinstance(node.body, ast.JoinedStr) or isinstance(node.orelse, ast.JoinedStr):
            return  # which message is chosen
        case ast.IfExp():
            yield from _negated(node.test, lambda test: _set(node, "test", test))
        case ast.Constant(value=bool(value)):
            yield _Site("constant", node, str(value), str(not value), _set(node, "value", not value))
        case ast.Constant(value=int() | float() as number):
            yield _Site("constant", node, str(number), str(number + 1), _set(node, "value", number + 1))
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.keyword():
                if child.arg not in MESSAGES and child.arg not in ASSERTIONS:
                    yield from _of_expression(child.value)
            case ast.comprehension():
                yield from _of_expression(child.iter)
                for place, condition in enumerate(child.ifs):
                    yield from _negated(condition, lambda test, where=child.ifs, at=place: _put(where, at, test))
                    yield from _of_expression(condition)
            case ast.expr():
                yield from _of_expression(child)


def _negated(
    condition: ast.expr, replaced: Callable[[ast.expr], Callable[[], None]], operator: str = "condition"
) -> Iterator[_Site]:
    """Not where the comparison itself becomes its opposite: that would be the same mutant twice."""
    match condition:
        case ast.Compare(ops=[operation]) if not isinstance(operation, _ORDERINGS):
            return
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            negation = operand
        case _:
            negation = ast.UnaryOp(ast.Not(), condition)
    yield _Site(operator, condition, _text(condition), _text(negation), replaced(negation))


def _set(node: ast.AST, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(node, name, value)


def _put(values: list[Any], place: int, value: ast.AST) -> Callable[[], None]:
    return lambda: values.__setitem__(place, value)


def _is_declaration(function: _Function) -> bool:
    """Nothing but a docstring, `...` or an error: an abstract method."""
    return all(
        isinstance(statement, (ast.Pass, ast.Raise))
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in function.body
    )


def _is_type_checking(test: ast.expr) -> bool:
    return _text(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _is_logging(statement: ast.stmt) -> bool:
    """Also a branch that does nothing else: when it is taken changes what people read, and no decision."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)) | ast.Name(id=name))):
            return name in LOGGERS
        case ast.If(body=body, orelse=[]):
            return all(_is_logging(inner) for inner in body)
    return False


def _is_super(call: ast.expr) -> bool:
    return "super()" in _text(call)


def _is_text(*nodes: ast.expr) -> bool:
    return any(
        isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))
        for node in nodes
    )


def _text(node: ast.AST) -> str:
    """On one line, however it is written."""
    return " ".join(ast.unparse(node).split())
