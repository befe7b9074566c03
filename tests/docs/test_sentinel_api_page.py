"""The page about SENTINEL's API names every route, and for each of them who may call it."""

from __future__ import annotations

import re

from documents import ROOT

from harch.sentinel.http.permissions import ACCESS

ROW = re.compile(r"^\| (`/[^|]*) \| ([A-Z, ]+) \| ([^|]+) \|", re.MULTILINE)


def test_the_page_says_of_every_route_who_may_call_it():
    page = (ROOT / "docs/sentinel/api.md").read_text("utf-8")
    told = {
        (method.strip(), path): who.strip()
        for paths, methods, who in ROW.findall(page)
        for path in re.findall(r"`([^`]+)`", paths)
        for method in methods.split(",")
    }
    assert told == {route: access.who for route, access in ACCESS.items()}
