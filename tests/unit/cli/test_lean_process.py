"""A package that is kept out is as if it were not installed; everything else is there."""

from __future__ import annotations

import importlib
import sys

import pytest

from harch.cli.verbs.fleet.sentinel import keep_out


def test_what_is_kept_out_cannot_be_imported_and_what_is_loaded_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    keep_out("colorsys", "json")
    with pytest.raises(ImportError, match="kept out"):
        importlib.import_module("colorsys")
    assert importlib.import_module("json").dumps([]) == "[]"
    monkeypatch.delitem(sys.modules, "graphlib", raising=False)
    assert importlib.import_module("graphlib")
