"""What can be called, and what do the errors mean? Pages for people, with nothing from any other host."""

from __future__ import annotations

from html import escape
from typing import Any

from harch.base.errors import REGISTRY, ErrorKind

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #8884; }
code { font: 14px/1.5 ui-monospace, monospace; }
:root { color-scheme: light dark; }
"""


def routes_page(openapi: dict[str, Any]) -> str:
    """Every route of the OpenAPI document, in a table."""
    rows = []
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            parameters = " ".join(
                f"<code>{escape(parameter['name'])}</code>"
                for parameter in operation.get("parameters", ())
                if parameter["in"] == "query"
            )
            rows.append(
                f"<tr><td><code>{method.upper()}</code></td><td><code>{escape(path)}</code></td>"
                f"<td>{escape(operation.get('summary', ''))}<br>{parameters}</td></tr>"
            )
    info = openapi["info"]
    return _page(
        f"{info['title']} {info['version']}",
        f"<p>{escape(info['description'])}</p>"
        '<p>In full: <a href="/openapi.json">openapi.json</a>. Error codes: <a href="/docs/errors">list</a>.</p>'
        f"<table><tr><th>Method</th><th>Path</th><th>What it does</th></tr>{''.join(rows)}</table>",
    )


def errors_page() -> str:
    rows = "".join(
        f'<tr><td><a href="/docs/errors/{kind.code}"><code>{kind.code}</code></a></td><td>{kind.status}</td>'
        f"<td>{escape(kind.title)}</td></tr>"
        for kind in REGISTRY.values()
    )
    return _page("Error codes", f"<table><tr><th>Code</th><th>HTTP</th><th>Meaning</th></tr>{rows}</table>")


def error_page(kind: ErrorKind) -> str:
    body = f"<p>HTTP {kind.status}</p><p>{escape(kind.explanation)}</p>"
    return _page(f"{kind.code}: {kind.title}", f'{body}<p><a href="/docs/errors">All codes</a></p>')


def _page(title: str, body: str) -> str:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{escape(title)}</h1>{body}</body></html>'
