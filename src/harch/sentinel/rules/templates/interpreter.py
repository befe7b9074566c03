"""What does a template write for this alert? The tree is walked with counted steps and counted output."""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from harch.base.errors import HarchError
from harch.sentinel.rules.templates import syntax
from harch.sentinel.rules.templates.functions import Function
from harch.sentinel.rules.templates.values import Struct, failed, field_of, show, truth, type_name

STEPS_MAX = 50_000
OUTPUT_CHARS_MAX = 65_536
INCLUDES_DEEP_MAX = 20

# Functions that the runner knows: they leave arguments unevaluated once the answer is clear.
LAZY_FUNCTIONS = ("and", "or")

_MISSING = object()


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


def run_template(
    template: syntax.ParsedTemplate,
    data: object,
    *,
    functions: Mapping[str, Function],
    variables: Mapping[str, object] | None = None,
    defined: Mapping[str, syntax.Block] | None = None,
) -> str:
    """Raises E0641 when the template fails, works too long or writes too much."""
    run = _Run(functions, {**(defined or {}), **template.defined})
    run.variables = [("$", data), *(variables or {}).items()]
    try:
        run.block(template.body, data)
    except RecursionError as error:
        raise failed("the template is nested too deeply") from error
    except (_Break, _Continue):  # of an included template, outside of its own loops
        raise failed("break or continue outside of range") from None
    return "".join(run.written)


class _Run:
    def __init__(self, functions: Mapping[str, Function], defined: Mapping[str, syntax.Block]) -> None:
        self.functions, self.defined = functions, defined
        self.variables: list[tuple[str, object]] = []
        self.written: list[str] = []
        self.chars = self.steps = self.includes = 0

    # Statements

    def block(self, block: syntax.Block, dot: object) -> None:
        for statement in block:
            self.step()
            self.statement(statement, dot)

    def statement(self, statement: syntax.Statement, dot: object) -> None:
        match statement:
            case syntax.Text(text):
                self.write(text)
            case syntax.ActionNode(pipeline):
                value = self.pipeline(pipeline, dot)
                if not pipeline.variables:
                    self.write(show(value))
            case syntax.If():
                self.choose(statement, dot, binds_dot=False)
            case syntax.With():
                self.choose(statement, dot, binds_dot=True)
            case syntax.Range():
                self.loop(statement, dot)
            case syntax.Include(name, pipeline):
                self.include(name, self.pipeline(pipeline, dot) if pipeline is not None else None)
            case syntax.Break():
                raise _Break
            case syntax.Continue():
                raise _Continue

    def choose(self, statement: syntax.If | syntax.With, dot: object, *, binds_dot: bool) -> None:
        mark = len(self.variables)
        value = self.pipeline(statement.pipeline, dot)
        if truth(value):
            self.block(statement.body, value if binds_dot else dot)
        else:
            self.block(statement.otherwise, dot)
        del self.variables[mark:]

    def loop(self, statement: syntax.Range, dot: object) -> None:
        mark = len(self.variables)
        names, declares = statement.pipeline.variables, statement.pipeline.declares
        items = _items(self.pipeline(syntax.PipeNode(statement.pipeline.commands), dot))
        for key, item in items:
            self.step()
            bound = (item,) if len(names) == 1 else (key, item)
            for name, value in zip(names, bound, strict=False):
                self.bind(name, value, declares=declares)
            inner = len(self.variables)
            try:
                self.block(statement.body, item)
            except _Break:
                break
            except _Continue:
                continue
            finally:
                del self.variables[inner - len(names) if declares else inner :]
        if not items:
            self.block(statement.otherwise, dot)
        del self.variables[mark:]

    def include(self, name: str, data: object) -> None:
        if name not in self.defined:
            raise failed(f"template `{name}` is not defined")
        self.includes += 1
        if self.includes > INCLUDES_DEEP_MAX:
            raise failed(f"templates call each other deeper than {INCLUDES_DEEP_MAX}")
        outer, self.variables = self.variables, [("$", data)]
        self.block(self.defined[name], data)
        self.variables = outer
        self.includes -= 1

    def write(self, text: str) -> None:
        self.chars += len(text)
        if self.chars > OUTPUT_CHARS_MAX:
            raise failed(f"the template writes more than {OUTPUT_CHARS_MAX} characters")
        self.written.append(text)

    def step(self) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise failed(f"the template takes more than {STEPS_MAX} steps")

    # Values

    def pipeline(self, pipeline: syntax.PipeNode, dot: object) -> object:
        value: object = _MISSING
        for command in pipeline.commands:
            value = self.command(command, dot, value)
        for name in pipeline.variables:
            self.bind(name, value, declares=pipeline.declares)
        return value

    def bind(self, name: str, value: object, *, declares: bool) -> None:
        if declares:
            self.variables.append((name, value))
            return
        for at in range(len(self.variables) - 1, -1, -1):
            if self.variables[at][0] == name:
                self.variables[at] = (name, value)
                return
        raise failed(f"variable `{name}` is not defined")

    def command(self, command: syntax.CommandNode, dot: object, piped: object) -> object:
        self.step()
        first, rest = command.operands[0], command.operands[1:]
        if isinstance(first, syntax.FunctionNode):
            return self.call(first.name, rest, dot, piped)
        names = first.names if isinstance(first, syntax.Fields | syntax.Variable | syntax.Chain) else ()
        if names and (rest or piped is not _MISSING):
            return self.method(first, rest, dot, piped)
        if rest or piped is not _MISSING:
            raise failed("a value that is not a function got arguments")
        return self.operand(first, dot)

    def call(self, name: str, operands: tuple[syntax.Operand, ...], dot: object, piped: object) -> object:
        if name in LAZY_FUNCTIONS:
            return self.lazy(name, operands, dot, piped)
        function = self.functions[name]
        arguments = [self.operand(operand, dot) for operand in operands]
        if piped is not _MISSING:
            arguments.append(piped)
        if not function.least <= len(arguments) <= function.most:
            raise failed(f"wrong number of args for {name}: want {function.least} got {len(arguments)}")
        return _called(name, function.call, arguments)

    def lazy(self, name: str, operands: tuple[syntax.Operand, ...], dot: object, piped: object) -> object:
        value: object = _MISSING
        for operand in operands:
            value = self.operand(operand, dot)
            if truth(value) is (name == "or"):
                return value
        result = piped if piped is not _MISSING else value
        if result is _MISSING:
            raise failed(f"wrong number of args for {name}: want at least 1 got 0")
        return result

    def method(self, first: syntax.Operand, rest: tuple[syntax.Operand, ...], dot: object, piped: object) -> object:
        """`.Labels.Remove $names`: the last name is a method with arguments."""
        match first:
            case syntax.Fields(names):
                owner = self.path(dot, names[:-1])
            case syntax.Variable(name, names):
                owner = self.path(self.variable(name), names[:-1])
            case syntax.Chain(start, names):
                owner = self.path(self.pipeline(start, dot), names[:-1])
            case _:
                raise failed("a value that is not a function got arguments")
        found = field_of(owner, names[-1])
        if not callable(found):
            raise failed(f"{names[-1]} is not a method but has arguments")
        arguments = [self.operand(operand, dot) for operand in rest]
        return _called(names[-1], found, [*arguments, piped] if piped is not _MISSING else arguments)

    def operand(self, operand: syntax.Operand, dot: object) -> object:
        self.step()
        match operand:
            case syntax.LiteralNode(value):
                return value
            case syntax.Dot():
                return dot
            case syntax.Fields(names):
                return self.path(dot, names)
            case syntax.Variable(name, names):
                return self.path(self.variable(name), names)
            case syntax.Chain(start, names):
                return self.path(self.pipeline(start, dot), names)
            case syntax.FunctionNode(name):
                return self.call(name, (), dot, _MISSING)
            case _:
                return None

    def path(self, value: object, names: Iterable[str]) -> object:
        for name in names:
            value = field_of(value, name)
            if callable(value):
                value = _called(name, value, [])
        return value

    def variable(self, name: str) -> object:
        for known, value in reversed(self.variables):
            if known == name:
                return value
        raise failed(f"variable `{name}` is not defined")


def _called(name: str, function: Callable[..., object], arguments: list[object]) -> object:
    try:
        return function(*arguments)
    except HarchError as error:
        _again(name, error)
    except TypeError as error:  # a method with another number of arguments
        raise failed(f"error calling {name}: {error}") from error


def _again(name: str, error: HarchError) -> NoReturn:
    raise HarchError("E0641", f"error calling {name}: {error.message}", hint=error.hint) from error


def _items(value: object) -> list[tuple[object, object]]:
    match value:
        case None:
            return []
        case list() | tuple():
            return list(enumerate(value))
        case dict():
            return [(key, value[key]) for key in sorted(value)]
        case bool() | str() | float() | Struct():
            raise failed(f"range can't iterate over {type_name(value)}")
        case int():
            if value > STEPS_MAX:
                raise failed(f"range over more than {STEPS_MAX}")
            return [(number, number) for number in range(value)]
        case _:
            raise failed(f"range can't iterate over {type_name(value)}")
