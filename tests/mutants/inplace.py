"""How does a mutant come to life? The code of one function is replaced, wherever in this process it is used.

Nothing is written and nothing imported anew: other modules hold the same function object, under whatever name.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType

from mutants.operators import Mutant, mutate

_Key = tuple[str, str, int]  # file, qualified name, first line
Functions = Mapping[_Key, Sequence[FunctionType]]


class NotViable(Exception):
    """Python refuses this change, so nobody could have made it."""


def loaded_functions(source: Path) -> Functions:
    """Every function object of modules below `source`: wrapped, decorated and bound ones are found, too."""
    found: defaultdict[_Key, list[FunctionType]] = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(f"{source}/"):
            found[_key(one.__code__)].append(one)
    return found


def bring_to_life(mutant: Mutant, source: Path, functions: Functions) -> None:
    """Raises NotViable if the change does not compile or does not fit its function."""
    file = source / mutant.path
    try:
        code = compile(mutate(file.read_text("utf-8"), mutant.path, mutant.id), str(file), "exec", dont_inherit=True)
    except SyntaxError as refused:
        raise NotViable(str(refused)) from refused
    wanted = (str(file), mutant.function, mutant.function_line)
    changed = next((found for found in _inside(code) if _key(found) == wanted), None)
    if changed is None or wanted not in functions:
        raise NotViable(f"{mutant.function} is not loaded")
    for function in functions[wanted]:
        try:
            function.__code__ = changed
        except ValueError as refused:  # other free variables: `super()` has gone
            raise NotViable(str(refused)) from refused


def _key(code: CodeType) -> _Key:
    return (code.co_filename, code.co_qualname, code.co_firstlineno)


def _inside(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inside(constant)
