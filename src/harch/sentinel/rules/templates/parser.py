"""What does a template say? From tokens to a tree; names of variables and functions are checked here, as Go does."""

# harch: pure

from __future__ import annotations

from collections.abc import Collection

from harch.base.errors import HarchError
from harch.sentinel.rules.templates import syntax
from harch.sentinel.rules.templates.syntax import TemplateToken, TemplateTokenKind, tokens

DEPTH_MAX = 40

_CONSTANTS = {"true": True, "false": False}


def parse_template(text: str, *, functions: Collection[str], variables: Collection[str] = ()) -> syntax.ParsedTemplate:
    """Raises E0641. `variables` are those that whoever runs the template sets beforehand."""
    return _Parser(tokens(text), functions, variables).template()


class _Parser:
    def __init__(self, stream: list[TemplateToken], functions: Collection[str], variables: Collection[str]) -> None:
        self.stream, self.at = stream, 0
        self.functions = functions
        self.scopes: list[set[str]] = [{"$", *variables}]
        self.defined: dict[str, syntax.Block] = {}
        self.depth = self.loops = 0

    def template(self) -> syntax.ParsedTemplate:
        body, ending = self.block()
        if ending != "":
            raise wrong(f"unexpected {{{{{ending}}}}}")
        return syntax.ParsedTemplate(body, self.defined)

    # Statements

    def block(self) -> tuple[syntax.Block, str]:
        """Statements up to `end`, `else` or the end of the template; the word that ended them."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise wrong(f"blocks are nested deeper than {DEPTH_MAX}")
        found: list[syntax.Statement] = []
        while True:
            token = self.take()
            if token.kind is TemplateTokenKind.END:
                ending = ""
                break
            if token.kind is TemplateTokenKind.TEXT:
                found.append(syntax.Text(token.text))
                continue
            self.skip_space()
            word = self.peek()
            if word.kind is TemplateTokenKind.WORD and word.text in ("end", "else"):
                self.take()
                ending = word.text
                break
            found += self.statement(word)
        self.depth -= 1
        return tuple(found), ending

    def statement(self, word: TemplateToken) -> list[syntax.Statement]:
        keyword = word.text if word.kind is TemplateTokenKind.WORD else ""
        match keyword:
            case "if":
                return [syntax.If(*self.control())]
            case "with":
                return [syntax.With(*self.control())]
            case "range":
                return [syntax.Range(*self.control(is_range=True))]
            case "template":
                return [self.include()]
            case "define":
                self.define()
                return []
            case "block":
                return [self.inline_block()]
            case "break" | "continue" if keyword not in self.functions:
                self.take()
                if not self.loops:
                    raise wrong(f"{{{{{keyword}}}}} outside of {{{{range}}}}")
                self.close(keyword)
                return [syntax.Break() if keyword == "break" else syntax.Continue()]
            case _:
                pipeline = self.pipeline("command")
                self.close("command")
                return [syntax.ActionNode(pipeline)]

    def control(self, *, is_range: bool = False) -> tuple[syntax.PipeNode, syntax.Block, syntax.Block]:
        keyword = self.take().text
        self.scopes.append(set())
        pipeline = self.pipeline(keyword, is_range=is_range)
        self.close(keyword)
        self.loops += is_range
        body, ending = self.scoped_block()
        self.loops -= is_range
        otherwise: syntax.Block = ()
        if ending == "else":
            otherwise = self.otherwise(keyword)
        elif ending == "end":
            self.close("end")
        else:
            raise wrong(f"{{{{{keyword}}}}} has no {{{{end}}}}")
        self.scopes.pop()
        return pipeline, body, otherwise

    def otherwise(self, keyword: str) -> syntax.Block:
        """`{{else}}…{{end}}`, or `{{else if …}}`, which shares the `{{end}}` of the first."""
        self.skip_space()
        word = self.peek()
        if word.kind is TemplateTokenKind.WORD and word.text == keyword and keyword in ("if", "with"):
            return tuple(self.statement(word))
        self.close("else")
        body, ending = self.scoped_block()
        if ending != "end":
            raise wrong(f"expected {{{{end}}}} of {{{{{keyword}}}}}, found {{{{{ending}}}}}")
        self.close("end")
        return body

    def scoped_block(self) -> tuple[syntax.Block, str]:
        self.scopes.append(set())
        result = self.block()
        self.scopes.pop()
        return result

    def include(self) -> syntax.Include:
        self.take()
        name = self.name_of_template()
        self.skip_space()
        pipeline = None if self.peek().kind is TemplateTokenKind.CLOSE else self.pipeline("template")
        self.close("template")
        return syntax.Include(name, pipeline)

    def define(self) -> None:
        self.take()
        name = self.name_of_template()
        self.close("define")
        self.defined[name] = self.body_of_template("define")

    def inline_block(self) -> syntax.Include:
        self.take()
        name = self.name_of_template()
        pipeline = self.pipeline("block")
        self.close("block")
        self.defined.setdefault(name, self.body_of_template("block"))
        return syntax.Include(name, pipeline)

    def body_of_template(self, keyword: str) -> syntax.Block:
        outer, self.scopes = self.scopes, [{"$"}]
        body, ending = self.block()
        self.scopes = outer
        if ending != "end":
            raise wrong(f"{{{{{keyword}}}}} has no {{{{end}}}}")
        self.close("end")
        return body

    def name_of_template(self) -> str:
        self.skip_space()
        token = self.take()
        if token.kind is not TemplateTokenKind.STRING:
            raise wrong("the name of a template must be a quoted string")
        return str(token.value)

    # Pipelines

    def pipeline(self, where: str, *, is_range: bool = False) -> syntax.PipeNode:
        names, declares = self.variables(where, is_range=is_range)
        commands = [self.command(where)]
        while self.at_mark("|"):
            self.take()
            commands.append(self.command(where))
            if isinstance(commands[-1].operands[0], syntax.LiteralNode | syntax.Nil | syntax.Dot):
                raise wrong(f"a value cannot take the result of a pipeline in {where}")
        if declares:  # only now: a variable does not exist in its own definition
            self.scopes[-1].update(names)
        return syntax.PipeNode(tuple(commands), names, declares)

    def variables(self, where: str, *, is_range: bool) -> tuple[tuple[str, ...], bool]:
        start = self.at
        names: list[str] = []
        self.skip_space()
        while self.peek().kind is TemplateTokenKind.VARIABLE and len(names) < (2 if is_range else 1):
            names.append(self.take().text)
            self.skip_space()
            mark = self.peek()
            if mark.kind is TemplateTokenKind.MARK and mark.text in (":=", "="):
                self.take()
                if mark.text == "=":
                    for name in names:
                        self.known(name)
                return tuple(names), mark.text == ":="
            if not (is_range and self.at_mark(",")):
                break
            self.take()
            self.skip_space()
        self.at = start
        return (), False

    def command(self, where: str) -> syntax.CommandNode:
        found: list[syntax.Operand] = []
        while True:
            self.skip_space()
            token = self.peek()
            if token.kind in (TemplateTokenKind.CLOSE, TemplateTokenKind.END) or (
                token.kind is TemplateTokenKind.MARK and token.text in "|)"
            ):
                break
            found.append(self.operand(where))
            if self.peek().kind not in (
                TemplateTokenKind.SPACE,
                TemplateTokenKind.CLOSE,
                TemplateTokenKind.END,
            ) and not self.at_mark("|", ")"):
                raise wrong(f"unexpected `{self.peek().text}` in {where}")
        if not found:
            raise wrong(f"missing value for {where}")
        if len(found) > 1 and isinstance(found[0], syntax.LiteralNode | syntax.Nil | syntax.Dot):
            raise wrong(f"a value cannot be called in {where}")
        return syntax.CommandNode(tuple(found))

    def operand(self, where: str) -> syntax.Operand:
        token = self.take()
        match token.kind:
            case TemplateTokenKind.STRING | TemplateTokenKind.NUMBER:
                return syntax.LiteralNode(token.value)
            case TemplateTokenKind.DOT:
                return syntax.Dot()
            case TemplateTokenKind.FIELD:
                return syntax.Fields((token.text, *self.fields()))
            case TemplateTokenKind.VARIABLE:
                self.known(token.text)
                return syntax.Variable(token.text, self.fields())
            case TemplateTokenKind.WORD:
                return self.word(token.text)
            case TemplateTokenKind.MARK if token.text == "(":
                return self.parenthesis(where)
            case _:
                raise wrong(f"unexpected `{token.text}` in {where}")

    def word(self, text: str) -> syntax.Operand:
        if text in _CONSTANTS:
            return syntax.LiteralNode(_CONSTANTS[text])
        if text == "nil":
            return syntax.Nil()
        if text not in self.functions:
            raise wrong(f"function `{text}` is not defined")
        return syntax.FunctionNode(text)

    def parenthesis(self, where: str) -> syntax.Operand:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise wrong(f"parentheses are nested deeper than {DEPTH_MAX}")
        inner = self.pipeline(where)
        self.skip_space()
        if not self.at_mark(")"):
            raise wrong(f"a parenthesis is not closed in {where}")
        self.take()
        self.depth -= 1
        return syntax.Chain(inner, self.fields())

    def fields(self) -> tuple[str, ...]:
        """The `.A.B` that follow without a space."""
        names = []
        while self.peek().kind is TemplateTokenKind.FIELD:
            names.append(self.take().text)
        return tuple(names)

    # Tokens

    def known(self, name: str) -> None:
        if not any(name in scope for scope in self.scopes):
            raise wrong(f"variable `{name}` is not defined")

    def peek(self) -> TemplateToken:
        return self.stream[self.at]

    def take(self) -> TemplateToken:
        token = self.stream[self.at]
        self.at = min(self.at + 1, len(self.stream) - 1)
        return token

    def at_mark(self, *marks: str) -> bool:
        token = self.peek()
        return token.kind is TemplateTokenKind.MARK and token.text in marks

    def skip_space(self) -> None:
        while self.peek().kind is TemplateTokenKind.SPACE:
            self.take()

    def close(self, where: str) -> None:
        self.skip_space()
        token = self.take()
        if token.kind is not TemplateTokenKind.CLOSE:
            raise wrong(f"unexpected `{token.text}` in {where}")


def wrong(what: str) -> HarchError:
    return HarchError("E0641", what, hint="templates are Go templates; docs/sentinel/rules.md lists the functions")
