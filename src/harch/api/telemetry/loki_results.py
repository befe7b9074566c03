"""How are answers about logs written? Loki's JSON: streams of lines, vectors and matrices, with statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harch.api.telemetry.answer import Answer, to_json
from harch.api.telemetry.loki_request import CATEGORIZE
from harch.api.telemetry.results import result_json
from harch.sentinel.logql.evaluate.engine import LogAnswer
from harch.sentinel.logql.evaluate.lines import Entry
from harch.sentinel.model.labels import Labels


def log_answer(answer: LogAnswer, seconds: float, *, categorized: bool, warnings: Sequence[str] = ()) -> Answer:
    """The envelope with `data` and `stats`."""
    value = answer.value
    stats = b',"stats":' + to_json(statistics(answer, seconds))
    if isinstance(value, list):
        flags = f',"encodingFlags":["{CATEGORIZE}"]'.encode() if categorized else b""
        result = to_json(streams_of(value, categorized=categorized))
        data = b'{"resultType":"streams","result":' + result + flags + stats + b"}"
    else:
        data = result_json(value)[:-1] + stats + b"}"
    notes = b',"warnings":' + to_json(list(warnings)) if warnings else b""
    return Answer(body=b'{"status":"success","data":' + data + notes + b"}")


def streams_of(entries: Iterable[Entry], *, categorized: bool) -> list[dict[str, Any]]:
    """Lines by their labels, in the order they came in; streams sorted by labels."""
    found: dict[Labels, list[list[Any]]] = {}
    for entry in entries:
        key = entry.stream if categorized else entry.labels
        line: list[Any] = [str(entry.time_ns), entry.text]
        if categorized:
            line.append(_categories(entry))
        found.setdefault(key, []).append(line)
    return [{"stream": dict(labels), "values": lines} for labels, lines in sorted(found.items())]


def _categories(entry: Entry) -> dict[str, dict[str, str]]:
    told = {"structuredMetadata": dict(entry.metadata), "parsed": dict(entry.parsed)}
    return {name: labels for name, labels in told.items() if labels}


def statistics(answer: LogAnswer, seconds: float) -> dict[str, Any]:
    """What was read: lines that passed the store's own filters, and their bytes."""
    lines, size = answer.read.lines, answer.read.text_bytes
    entries = len(answer.value) if isinstance(answer.value, list) else 0
    per_second = 1 / seconds if seconds > 0 else 0.0
    nothing: dict[str, Any] = {
        "totalChunksRef": 0,
        "totalChunksDownloaded": 0,
        "chunksDownloadTime": 0,
        "chunk": {
            "headChunkBytes": 0,
            "headChunkLines": 0,
            "decompressedBytes": size,
            "decompressedLines": lines,
            "compressedBytes": 0,
            "totalDuplicates": 0,
        },
    }
    return {
        "summary": {
            "bytesProcessedPerSecond": round(size * per_second),
            "linesProcessedPerSecond": round(lines * per_second),
            "totalBytesProcessed": size,
            "totalLinesProcessed": lines,
            "execTime": round(seconds, 6),
            "queueTime": 0,
            "subqueries": 0,
            "totalEntriesReturned": entries,
            "splits": 0,
            "shards": 0,
        },
        "querier": {"store": nothing},
        "ingester": {
            "totalReached": 0,
            "totalChunksMatched": 0,
            "totalBatches": 0,
            "totalLinesSent": 0,
            "store": {},
        },
    }
