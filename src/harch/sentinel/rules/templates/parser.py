"""What does a template say? From tokens to a tree; names of variables and functions are checked here, as Go does."""

from __future__ import annotations

from collections.abc import Collection

from harch.base.errors import HarchError
from harch.sentinel.rules.templates import nodes
from harch.sentinel.rules.templates.lexer import Kind, Token, tokens

DEPTH_MAX = 40

_CONSTANTS = {"true": True, "false": False}


def parse_template(text: str, *, functions: Collection[str], variables: Collection[str] = ()) -> nodes.Template:
    """Raises E0641. `variables` are those that whoever runs the template sets beforehand."""
    return _Parser(tokens(text), functions, variables).template()


class _Parser:
    def __init__(self, stream: list[Token], functions: Collection[str], variables: Collection[str]) -> None:
        self.stream, self.at = stream, 0
        self.functions = functions
        self.scopes: list[set[str]] = [{"$", *variables}]
        self.defined: dict[str, nodes.Block] = {}
        self.depth = self.loops = 0

    def template(self) -> nodes.Template:
        body, ending = self.block()
        if ending != "":
            raise wrong(f"unexpected {{{{{ending}}}}}")
        return nodes.Template(body, self.defined)

    # Statements

    def block(self) -> tuple[nodes.Block, str]:
        """Statements up to `end`, `else` or the end of the template; the word that ended them."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise wrong(f"blocks are nested deeper than {DEPTH_MAX}")
        found: list[nodes.Statement] = []
        while True:
            token = self.take()
            if token.kind is Kind.END:
                ending = ""
                break
            if token.kind is Kind.TEXT:
                found.append(nodes.Text(token.text))
                continue
            self.skip_space()
            word = self.peek()
            if word.kind is Kind.WORD and word.text in ("end", "else"):
                self.take()
                ending = word.text
                break
            found += self.statement(word)
        self.depth -= 1
        return tuple(found), ending

    def statement(self, word: Token) -> list[nodes.Statement]:
        keyword = word.text if word.kind is Kind.WORD else ""
        match keyword:
            case "if":
                return [nodes.If(*self.control())]
            case "with":
                return [nodes.With(*self.control())]
            case "range":
                return [nodes.Range(*self.control(is_range=True))]
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
                return [nodes.Break() if keyword == "break" else nodes.Continue()]
            case _:
                pipeline = self.pipeline("command")
                self.close("command")
                return [nodes.Action(pipeline)]

    def control(self, *, is_range: bool = False) -> tuple[nodes.Pipeline, nodes.Block, nodes.Block]:
        keyword = self.take().text
        self.scopes.append(set())
        pipeline = self.pipeline(keyword, is_range=is_range)
        self.close(keyword)
        self.loops += is_range
        body, ending = self.scoped_block()
        self.loops -= is_range
        otherwise: nodes.Block = ()
        if ending == "else":
            otherwise = self.otherwise(keyword)
        elif ending == "end":
            self.close("end")
        else:
            raise wrong(f"{{{{{keyword}}}}} has no {{{{end}}}}")
        self.scopes.pop()
        return pipeline, body, otherwise

    def otherwise(self, keyword: str) -> nodes.Block:
        """`{{else}}…{{end}}`, or `{{else if …}}`, which shares the `{{end}}` of the first."""
        self.skip_space()
        word = self.peek()
        if word.kind is Kind.WORD and word.text == keyword and keyword in ("if", "with"):
            return tuple(self.statement(word))
        self.close("else")
        body, ending = self.scoped_block()
        if ending != "end":
            raise wrong(f"expected {{{{end}}}} of {{{{{keyword}}}}}, found {{{{{ending}}}}}")
        self.close("end")
        return body

    def scoped_block(self) -> tuple[nodes.Block, str]:
        self.scopes.append(set())
        result = self.block()
        self.scopes.pop()
        return result

    def include(self) -> nodes.Include:
        self.take()
        name = self.name_of_template()
        self.skip_space()
        pipeline = None if self.peek().kind is Kind.CLOSE else self.pipeline("template")
        self.close("template")
        return nodes.Include(name, pipeline)

    def define(self) -> None:
        self.take()
        name = self.name_of_template()
        self.close("define")
        self.defined[name] = self.body_of_template("define")

    def inline_block(self) -> nodes.Include:
        self.take()
        name = self.name_of_template()
        pipeline = self.pipeline("block")
        self.close("block")
        self.defined.setdefault(name, self.body_of_template("block"))
        return nodes.Include(name, pipeline)

    def body_of_template(self, keyword: str) -> nodes.Block:
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
        if token.kind is not Kind.STRING:
            raise wrong("the name of a template is a quoted text")
        return str(token.value)

    # Pipelines

    def pipeline(self, where: str, *, is_range: bool = False) -> nodes.Pipeline:
        names, declares = self.variables(where, is_range=is_range)
        commands = [self.command(where)]
        while self.at_mark("|"):
            self.take()
            commands.append(self.command(where))
            if isinstance(commands[-1].operands[0], nodes.Literal | nodes.Nil | nodes.Dot):
                raise wrong(f"a value cannot take the result of a pipeline in {where}")
        if declares:  # only now: a variable does not exist in its own definition
            self.scopes[-1].update(names)
        return nodes.Pipeline(tuple(commands), names, declares)

    def variables(self, where: str, *, is_range: bool) -> tuple[tuple[str, ...], bool]:
        start = self.at
        names: list[str] = []
        self.skip_space()
        while self.peek().kind is Kind.VARIABLE and len(names) < (2 if is_range else 1):
            names.append(self.take().text)
            self.skip_space()
            mark = self.peek()
            if mark.kind is Kind.MARK and mark.text in (":=", "="):
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

    def command(self, where: str) -> nodes.Command:
        found: list[nodes.Operand] = []
        while True:
            self.skip_space()
            token = self.peek()
            if token.kind in (Kind.CLOSE, Kind.END) or (token.kind is Kind.MARK and token.text in "|)"):
                break
            found.append(self.operand(where))
            if self.peek().kind not in (Kind.SPACE, Kind.CLOSE, Kind.END) and not self.at_mark("|", ")"):
                raise wrong(f"unexpected `{self.peek().text}` in {where}")
        if not found:
            raise wrong(f"missing value for {where}")
        if len(found) > 1 and isinstance(found[0], nodes.Literal | nodes.Nil | nodes.Dot):
            raise wrong(f"a value cannot be called in {where}")
        return nodes.Command(tuple(found))

    def operand(self, where: str) -> nodes.Operand:
        token = self.take()
        match token.kind:
            case Kind.STRING | Kind.NUMBER:
                return nodes.Literal(token.value)
            case Kind.DOT:
                return nodes.Dot()
            case Kind.FIELD:
                return nodes.Fields((token.text, *self.fields()))
            case Kind.VARIABLE:
                self.known(token.text)
                return nodes.Variable(token.text, self.fields())
            case Kind.WORD:
                return self.word(token.text)
            case Kind.MARK if token.text == "(":
                return self.parenthesis(where)
            case _:
                raise wrong(f"unexpected `{token.text}` in {where}")

    def word(self, text: str) -> nodes.Operand:
        if text in _CONSTANTS:
            return nodes.Literal(_CONSTANTS[text])
        if text == "nil":
            return nodes.Nil()
        if text not in self.functions:
            raise wrong(f"function `{text}` is not defined")
        return nodes.Call(text)

    def parenthesis(self, where: str) -> nodes.Operand:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise wrong(f"parentheses are nested deeper than {DEPTH_MAX}")
        inner = self.pipeline(where)
        self.skip_space()
        if not self.at_mark(")"):
            raise wrong(f"a parenthesis is not closed in {where}")
        self.take()
        self.depth -= 1
        return nodes.Chain(inner, self.fields())

    def fields(self) -> tuple[str, ...]:
        """The `.A.B` that follow without a space."""
        names = []
        while self.peek().kind is Kind.FIELD:
            names.append(self.take().text)
        return tuple(names)

    # Tokens

    def known(self, name: str) -> None:
        if not any(name in scope for scope in self.scopes):
            raise wrong(f"variable `{name}` is not defined")

    def peek(self) -> Token:
        return self.stream[self.at]

    def take(self) -> Token:
        token = self.stream[self.at]
        self.at = min(self.at + 1, len(self.stream) - 1)
        return token

    def at_mark(self, *texts: str) -> bool:
        token = self.peek()
        return token.kind is Kind.MARK and token.text in texts

    def skip_space(self) -> None:
        while self.peek().kind is Kind.SPACE:
            self.take()

    def close(self, where: str) -> None:
        self.skip_space()
        token = self.take()
        if token.kind is not Kind.CLOSE:
            raise wrong(f"unexpected `{token.text}` in {where}")


def wrong(what: str) -> HarchError:
    return HarchError("E0641", what, hint="templates are Go templates; docs/sentinel/rules.md lists the functions")
