"""Which trace does a line of the log belong to? The one that the task or thread was in, or that the line itself names.

`LOG.info("…", extra=ids_of(context))` names one where nothing is current, e.g. when work moves on by itself.
"""

from __future__ import annotations

import logging

from opentelemetry import trace

from harch.base.tracing.context import TraceContext

PLAIN_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TraceFilter(logging.Filter):
    """Sets `trace_id` and `span_id` on every record that passes: in hexadecimal, empty outside of a trace."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "trace_id"):
            known = trace.get_current_span().get_span_context()
            record.trace_id = f"{known.trace_id:032x}" if known.trace_id else ""
            record.span_id = f"{known.span_id:016x}" if known.span_id else ""
        return True


class TraceFormatter(logging.Formatter):
    """The usual line, with `[trace …]` behind it where there is one."""

    def __init__(self, form: str = PLAIN_FORMAT) -> None:
        super().__init__(form)

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        trace_id = getattr(record, "trace_id", "")
        return f"{line} [trace {trace_id}]" if trace_id else line


def show_traces(handler: logging.Handler, form: str = PLAIN_FORMAT) -> None:
    """Lines of this handler carry trace ids from here on."""
    handler.addFilter(TraceFilter())
    handler.setFormatter(TraceFormatter(form))


def ids_of(context: TraceContext) -> dict[str, str]:
    return {"trace_id": context.trace_id.hex(), "span_id": context.span_id.hex()}
