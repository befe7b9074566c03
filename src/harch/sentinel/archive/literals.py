"""Which texts must stand in every line that an expression matches? Found by reading it with care, or none at all.

Only plain runs of characters outside of groups, classes and alternatives are taken; whatever is not surely needed ends
a run. An empty answer is always right.
"""

# harch: pure

from __future__ import annotations

_ENDS = frozenset("+.^$)]}")
_OPTIONAL = frozenset("?*{")
_PLAIN_ESCAPES = frozenset("\\.+*?()[]{}|^$/-\"'`:;,=<>!@#%&~_ ")


def required_literals(expression: str) -> list[str]:
    if "|" in expression or "(?" in expression or "\\Q" in expression:
        return []
    found: list[str] = []
    run: list[str] = []

    def end() -> None:
        if run:
            found.append("".join(run))
            run.clear()

    at = 0
    while at < len(expression):
        char = expression[at]
        if char == "[":
            end()
            at = _behind_class(expression, at)
        elif char == "(":
            end()
            at = _behind_group(expression, at)
        elif char in _OPTIONAL:
            if run:
                run.pop()  # the character before may be missing
            end()
            at = _behind_braces(expression, at) if char == "{" else at + 1
        elif char in _ENDS:
            end()
            at += 1
        elif char == "\\":
            following = expression[at + 1 : at + 2]
            if following not in _PLAIN_ESCAPES or not following:
                if following in ("x", "p", "P", "C") or following.isdigit():
                    return found  # longer escapes: what stands behind is not taken apart
                end()
            else:
                run.append(following)
            at += 2
        else:
            run.append(char)
            at += 1
    end()
    return found


def _behind_class(expression: str, at: int) -> int:
    at += 1
    if expression[at : at + 1] == "^":
        at += 1
    if expression[at : at + 1] == "]":
        at += 1
    while at < len(expression) and expression[at] != "]":
        if expression[at : at + 2] == "[:":
            closing = expression.find(":]", at)
            at = closing + 2 if closing > 0 else len(expression)
        else:
            at += 2 if expression[at] == "\\" else 1
    return at + 1


def _behind_group(expression: str, at: int) -> int:
    depth = 0
    while at < len(expression):
        char = expression[at]
        if char == "[":
            at = _behind_class(expression, at)
            continue
        if char == "\\":
            at += 2
            continue
        depth += (char == "(") - (char == ")")
        at += 1
        if depth == 0:
            break
    return at


def _behind_braces(expression: str, at: int) -> int:
    closing = expression.find("}", at)
    return closing + 1 if closing > 0 else len(expression)
