"""What does it cost to read and clean logs and traces? CPU of one core; `make bench-telemetry-ingest`.

Bodies are made first and read again and again in one thread; nothing is stored. Redaction is compared, in the same run,
with the same rules applied to one line after the other.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import cramjam
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from harch.sentinel.collect.loki import read_json, read_protobuf, unpacked
from harch.sentinel.collect.otlp.logs_and_traces import exported_logs, exported_spans
from harch.sentinel.collect.pushed import Pushed
from harch.sentinel.collect.redaction.redactor import Redactor
from harch.sentinel.collect.redaction.rules import read_rules, with_shipped
from harch.sentinel.log_shipper.records import ShippedLine
from harch.sentinel.log_shipper.shipper import push_body
from verdict import Verdict, conditions

PARSED = "OTLP traces, protobuf alone"
STREAMS, LINES, ROUNDS = 10, 2000, 7
NS = 1_763_200_000_000_000_000
T = TypeVar("T")
Pairs = tuple[tuple[str, str], ...]


def cpu_s(work: Callable[[], T]) -> tuple[float, T]:
    """The least CPU time of several rounds, and what came out."""
    best, result = float("inf"), work()
    for _ in range(ROUNDS):
        began = time.process_time()
        result = work()
        best = min(best, time.process_time() - began)
    return best, result


def read_packed(body: bytes) -> Pushed:
    return read_protobuf(unpacked(body, 1 << 28))


def lines_of(chance: random.Random, stream: int, metadata: Pairs) -> list[ShippedLine]:
    return [
        ShippedLine(
            NS + 1000 * place,
            f'level=info msg="request done" path=/api/v1/things/{chance.randrange(10**6)} status=200 '
            f"duration={chance.random():.4f}s user=u{chance.randrange(1000)} stream={stream} tokens={place}",
            (*metadata, ("trace_id", f"{chance.getrandbits(128):032x}")) if metadata else (),
        )
        for place in range(LINES)
    ]


def otlp_bodies(chance: random.Random) -> tuple[bytes, bytes]:
    logs, traces = ExportLogsServiceRequest(), ExportTraceServiceRequest()
    of_logs, of_traces = logs.resource_logs.add(), traces.resource_spans.add()
    for resource in (of_logs.resource, of_traces.resource):
        for key in ("service.name", "host.name", "os.type"):
            resource.attributes.add(key=key).value.string_value = f"the {key}"
    records, spans = of_logs.scope_logs.add().log_records, of_traces.scope_spans.add().spans
    for place in range(LINES):
        trace_id, span_id = chance.randbytes(16), chance.randbytes(8)
        record = records.add(time_unix_nano=NS + place, severity_number=9, trace_id=trace_id, span_id=span_id)
        record.body.string_value = f"request {place} done, status=200"
        span = spans.add(trace_id=trace_id, span_id=span_id, name="GET /things", kind=2)
        span.start_time_unix_nano, span.end_time_unix_nano = NS + place, NS + place + 10**6
        for told in (record, span):
            for key, value in (
                ("http.method", "GET"),
                ("http.route", "/things/{id}"),
                ("url.path", f"/things/{place}"),
            ):
                told.attributes.add(key=key).value.string_value = value
            told.attributes.add(key="http.status_code").value.int_value = 200
            told.attributes.add(key="net.peer.name").value.string_value = "api.internal"
    return logs.SerializeToString(), traces.SerializeToString()


def main() -> None:
    chance = random.Random(9)
    redactor = Redactor(read_rules(with_shipped(())))
    found: dict[str, float] = {}

    def tell(name: str, seconds: float, count: int, raw_bytes: int = 0) -> None:
        found[name] = round(seconds / count * 1e6, 3)
        rate = f"  {raw_bytes / seconds / 1e6:8.0f} MB/s/core" if raw_bytes else f"  {count / seconds:8.0f} /s/core"
        print(f"{name:<44} {seconds / count * 1e6:8.2f} µs{rate}")

    for name, metadata in (("lines", ()), ("lines with 3 metadata", (("level", "info"), ("pod", "a-1")))):
        told = [((("job", "api"), ("n", str(at))), lines_of(chance, at, metadata)) for at in range(STREAMS)]
        count, raw = STREAMS * LINES, sum(len(line.text) for _, lines in told for line in lines)
        packed = bytes(cramjam.snappy.compress_raw(push_body(told)))
        seconds, pushed = cpu_s(partial(read_packed, packed))
        tell(f"Loki push, protobuf: {name}", seconds, count, raw)
        values = [[[str(line.time_ns), line.text, dict(line.metadata)] for line in lines] for _, lines in told]
        body = json.dumps(
            {
                "streams": [
                    {"stream": dict(labels), "values": one} for (labels, _), one in zip(told, values, strict=True)
                ]
            }
        ).encode()
        seconds, _ = cpu_s(partial(read_json, body))
        tell(f"Loki push, JSON: {name}", seconds, count, raw)
        seconds, _ = cpu_s(partial(redactor.batches, pushed.batches))
        tell(f"redaction, all shipped rules: {name}", seconds, count, raw)

    texts = [line.text for line in lines_of(chance, 0, ())]
    seconds, _ = cpu_s(lambda: [rule.applied(text) for text in texts for rule in redactor.rules])
    tell("redaction, line after line, for comparison", seconds, len(texts))
    logs_body, traces_body = otlp_bodies(chance)
    seconds, exported = cpu_s(lambda: exported_logs(ExportLogsServiceRequest.FromString(logs_body), NS))
    tell("OTLP logs, 5 attributes", seconds, LINES)
    seconds, _ = cpu_s(lambda: redactor.batches(exported.batches))
    tell("redaction: OTLP logs", seconds, LINES)
    seconds, _ = cpu_s(lambda: ExportTraceServiceRequest.FromString(traces_body))
    tell(PARSED, seconds, LINES)
    seconds, spans = cpu_s(lambda: exported_spans(ExportTraceServiceRequest.FromString(traces_body)))
    tell("OTLP traces, 5 attributes", seconds, LINES)
    seconds, _ = cpu_s(lambda: redactor.spans(spans.spans))
    tell("redaction: spans", seconds, LINES)
    verdict = Verdict("telemetry_ingest")
    read, clean = found["Loki push, protobuf: lines"], found["redaction, all shipped rules: lines"]
    alone = found["redaction, line after line, for comparison"]
    verdict.goal("redaction, CPU against line after line", "< 0.1", clean / alone, "x")
    verdict.goal("redaction, CPU against reading the push", "< 1", clean / read, "x")
    verdict.goal(
        "OTLP traces, CPU against protobuf alone", "< 100", found["OTLP traces, 5 attributes"] / found[PARSED], "x"
    )
    print(f"CPU time of one thread, the least of {ROUNDS} rounds; {conditions()}")
    verdict.print()


if __name__ == "__main__":
    main()
