"""Do notifications arrive? Real HTTP and SMTP servers on loopback, with TLS, passwords and faults."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from email import message_from_bytes
from email.policy import default as mail_policy
from pathlib import Path

import pytest
from aiosmtpd.smtp import SMTP, AuthResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.config_file import parse_config
from harch.sentinel.alerts.delivery import Delivery, Why, receiver_key
from harch.sentinel.alerts.notify.delivery_queue import DeliveryQueue
from harch.sentinel.alerts.notify.retry_policy import BURST_MAX
from harch.sentinel.alerts.notify.senders import NotificationSender
from harch.sentinel.alerts.templates import Notice
from harch.sentinel.model.labels import labels
from harch.testing.clock import SimClock

T0 = 1_767_261_600_000


def delivery_to(receiver_yaml: str, *, deadline_ms: int = T0 + 300_000) -> Delivery:
    config = parse_config(f"route: {{receiver: team}}\nreceivers:\n- name: team\n{receiver_yaml}")
    integration = config.receivers["team"].integrations[0]
    alert = Alert(
        labels=labels({"alertname": "Down", "instance": "a"}),
        annotations={"summary": "a is down\r\nBcc: everybody@example.org"},
        starts_at_ms=T0,
        ends_at_ms=0,
        updated_at_ms=T0,
        generator_url="https://sentinel.example/graph",
    )
    notice = Notice(
        receiver="team",
        group_key='{}:{alertname="Down"}',
        group_labels=labels({"alertname": "Down"}),
        alerts=(alert,),
        now_ms=T0 + 5,
        external_url="https://sentinel.example",
    )
    return Delivery(
        receiver=receiver_key("team", integration, 0),
        integration=integration,
        notice=notice,
        firing=(alert.fingerprint,),
        resolved=(),
        why=Why.FIRST,
        repeat_interval_ms=60_000,
        deadline_ms=deadline_ms,
    )


class WebServer:
    """Answers each request with the next of `statuses`, then with 200."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append(({**headers, "path": head[0].split()[1]}, body))
        status = self.statuses.pop(0) if self.statuses else 200
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: 5\r\nconnection: close\r\n\r\nreply".encode())
        await writer.drain()
        writer.close()


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    made = WebServer()
    server = await asyncio.start_server(made.handle, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


async def test_a_webhook_gets_version_4_with_its_token(web: WebServer, tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    url = f"http://127.0.0.1:{web.port}/hook?k=v"
    yaml = f"  webhook_configs: [{{url: '{url}', http_config: {{authorization: {{credentials_file: {token}}}}}}}]\n"
    await NotificationSender().send(delivery_to(yaml))
    headers, body = web.requests[0]
    assert headers["path"] == "/hook?k=v"
    assert headers["authorization"] == "bearer s3cret"
    assert json.loads(body) == {
        "receiver": "team",
        "status": "firing",
        "alerts": [
            {
                "status": "firing",
                "labels": {"alertname": "Down", "instance": "a"},
                "annotations": {"summary": "a is down\r\nBcc: everybody@example.org"},
                "startsAt": "2026-01-01T10:00:00Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "https://sentinel.example/graph",
                "fingerprint": "b095cbba435360b4",
            }
        ],
        "groupLabels": {"alertname": "Down"},
        "commonLabels": {"alertname": "Down", "instance": "a"},
        "commonAnnotations": {"summary": "a is down\r\nBcc: everybody@example.org"},
        "externalURL": "https://sentinel.example",
        "version": "4",
        "groupKey": '{}:{alertname="Down"}',
        "truncatedAlerts": 0,
    }


async def test_slack_gets_an_attachment(web: WebServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLACK_HOOK", f"http://127.0.0.1:{web.port}/services/T/B/secret")
    fields = "[{title: who, value: '{{ .Receiver }}'}]"
    yaml = f"  slack_configs: [{{api_url_env: SLACK_HOOK, channel: '#ops', fields: {fields}}}]\n"
    await NotificationSender().send(delivery_to(yaml))
    message = json.loads(web.requests[0][1])
    assert message["channel"] == "#ops"
    (attachment,) = message["attachments"]
    assert attachment["color"] == "danger"
    assert attachment["title"] == "[FIRING:1] Down (a)"
    assert attachment["fields"] == [{"title": "who", "value": "team", "short": False}]


async def test_an_address_with_a_secret_never_appears_in_errors_or_logs(
    web: WebServer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    web.statuses = [403, 500]
    yaml = f"  webhook_configs: [{{url: 'http://user:pw@127.0.0.1:{web.port}/very-secret'}}]\n"
    for retry in (False, True):
        with pytest.raises(HarchError) as refused:
            await NotificationSender().send(delivery_to(yaml))
        assert refused.value.meta["retry"] is retry
        assert "secret" not in str(refused.value)
        assert "pw" not in str(refused.value)
    with pytest.raises(HarchError) as unreachable:
        await NotificationSender().send(delivery_to("  webhook_configs: [{url: 'http://127.0.0.1:1/very-secret'}]\n"))
    assert "secret" not in str(unreachable.value)
    assert not any("secret" in record.getMessage() for record in caplog.records)


class Mailbox:
    def __init__(self) -> None:
        self.mails: list[tuple[list[str], bytes]] = []
        self.users: list[str] = []

    async def handle_DATA(self, server: SMTP, session: object, envelope: object) -> str:
        self.mails.append((envelope.rcpt_tos, envelope.content))  # type: ignore[attr-defined]
        return "250 OK"

    def authenticate(self, server: SMTP, session: object, envelope: object, mechanism: str, data: object) -> AuthResult:
        good = (data.login, data.password) == (b"harch", b"hunter2")  # type: ignore[attr-defined]
        self.users.append(data.login.decode())  # type: ignore[attr-defined]
        return AuthResult(success=good, handled=good)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("smtp")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
async def smtp(certificate: tuple[Path, Path]) -> AsyncIterator[Callable[..., object]]:
    servers: list[asyncio.Server] = []

    async def start(*, tls: bool) -> tuple[Mailbox, int]:
        box = Mailbox()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)

        def protocol() -> SMTP:
            options = {"tls_context": context, "require_starttls": True, "auth_required": True} if tls else {}
            return SMTP(box, authenticator=box.authenticate, loop=asyncio.get_running_loop(), **options)

        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        servers.append(server)
        return box, server.sockets[0].getsockname()[1]

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


def mail_to(port: int, ca: Path, *, password: str = "hunter2") -> str:
    return f"""
  email_configs:
  - to: 'Ops <ops@example.org>, night@example.org'
    from: HarchOS <alerts@example.org>
    smarthost: 127.0.0.1:{port}
    auth_username: harch
    auth_password: {password}
    tls_config: {{ca_file: {ca}}}
    headers: {{Subject: 'Alert: {{{{ .CommonAnnotations.summary }}}}'}}
    html: '<b>{{{{ .Status | toUpper }}}}</b>'
"""


async def test_a_mail_goes_out_over_starttls_with_a_password_and_nobody_can_add_headers(smtp, certificate):
    box, port = await smtp(tls=True)
    await NotificationSender().send(delivery_to(mail_to(port, certificate[0])))
    recipients, content = box.mails[0]
    assert recipients == ["ops@example.org", "night@example.org"]
    assert box.users == ["harch"]
    mail = message_from_bytes(content, policy=mail_policy)
    assert mail["Subject"] == "Alert: a is down Bcc: everybody@example.org"
    assert mail["Bcc"] is None
    assert mail["From"] == "HarchOS <alerts@example.org>"
    assert mail["Message-Id"].endswith("@example.org>")
    plain, html = (part.get_content() for part in mail.iter_parts())
    assert "alertname = Down" in plain
    assert html.strip() == "<b>FIRING</b>"


async def test_mail_that_would_go_unencrypted_or_to_a_stranger_is_not_sent(smtp, certificate, tmp_path: Path):
    box, port = await smtp(tls=False)
    with pytest.raises(HarchError, match="not support STARTTLS"):
        await NotificationSender().send(delivery_to(mail_to(port, certificate[0])))
    other, port = await smtp(tls=True)
    yaml = mail_to(port, certificate[0])
    untrusted = "\n".join(line for line in yaml.splitlines() if "ca_file" not in line)
    with pytest.raises(HarchError, match="SSL"):
        await NotificationSender().send(delivery_to(untrusted))
    with pytest.raises(HarchError, match="rejected the user") as refused:
        await NotificationSender().send(delivery_to(mail_to(port, certificate[0], password="wrong")))
    assert refused.value.meta["retry"] is False
    assert "wrong" not in str(refused.value)
    assert box.mails == other.mails == []


class Outcomes:
    def __init__(self) -> None:
        self.list: list[str] = []
        self.some = asyncio.Event()

    def done(self, delivery: Delivery, error: HarchError | None) -> None:
        self.list.append("sent" if error is None else error.message)
        self.some.set()


async def test_a_receiver_that_fails_for_a_while_gets_the_notification_after_pauses(web: WebServer):
    web.statuses = [500, 503]
    clock, outcomes = SimClock(), Outcomes()
    courier = DeliveryQueue(NotificationSender(), clock, done=outcomes.done)
    running = asyncio.create_task(courier.run())
    courier.offer(delivery_to(f"  webhook_configs: [{{url: 'http://127.0.0.1:{web.port}/'}}]\n"))
    async with asyncio.timeout(60):
        while not outcomes.list:
            await asyncio.sleep(0.01)
            await clock.advance(0.5)
    running.cancel()
    assert outcomes.list == ["sent"]
    assert len(web.requests) == 3
    assert courier.counts["team/webhook[0]", "attempts"] == 3


async def test_a_receiver_that_stays_away_is_given_up_at_the_deadline_and_a_refusal_at_once(web: WebServer):
    web.statuses = [404]
    outcomes = Outcomes()
    clock = SystemClock()
    courier = DeliveryQueue(NotificationSender(), clock, done=outcomes.done)
    running = asyncio.create_task(courier.run())
    now_ms = round(clock.now().timestamp() * 1000)
    courier.offer(delivery_to("  webhook_configs: [{url: 'http://127.0.0.1:1/'}]\n", deadline_ms=now_ms + 500))
    courier.offer(delivery_to(f"  webhook_configs: [{{url: 'http://127.0.0.1:{web.port}/'}}]\n"))
    async with asyncio.timeout(60):
        while len(outcomes.list) < 2:
            await asyncio.sleep(0.01)
    running.cancel()
    assert any("ConnectError" in outcome for outcome in outcomes.list)
    assert any("answered 404" in outcome for outcome in outcomes.list)
    assert courier.counts["team/webhook[0]", "attempts"] == 2


class Counting:
    def __init__(self) -> None:
        self.sent = 0

    async def send(self, delivery: Delivery) -> None:
        self.sent += 1


async def test_a_storm_is_spread_over_time():
    clock, outcomes, counting = SimClock(), Outcomes(), Counting()
    courier = DeliveryQueue(counting, clock, done=outcomes.done)
    running = asyncio.create_task(courier.run())
    delivery = delivery_to("  webhook_configs: [{url: 'http://127.0.0.1:1/'}]\n")
    for _ in range(BURST_MAX + 10):
        courier.offer(delivery)
    await clock.advance(0.5)
    assert counting.sent == BURST_MAX
    await clock.advance(30)
    assert counting.sent == BURST_MAX + 10
    running.cancel()


async def test_a_redirect_leads_to_no_other_host(web: WebServer):
    """Alerts name tenants and machines: only the host in the configuration hears of them."""
    other = await asyncio.start_server(lambda reader, writer: heard.append(writer), "127.0.0.1", 0)
    heard: list[object] = []
    port = other.sockets[0].getsockname()[1]

    async def redirects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 307 X\r\nlocation: http://localhost:{port}/\r\ncontent-length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    first = await asyncio.start_server(redirects, "127.0.0.1", 0)
    async with first, other:
        url = f"http://127.0.0.1:{first.sockets[0].getsockname()[1]}/hook"
        with pytest.raises(HarchError, match="redirects to a host") as refused:
            await NotificationSender().send(delivery_to(f"  webhook_configs: [{{url: '{url}'}}]\n"))
    assert refused.value.meta["retry"] is False
    assert not heard


async def test_what_is_told_of_a_receiver_is_its_host_as_the_client_reads_it():
    """A token may follow the host at once, and what looks like a user may be the host."""
    for url in ("http://127.0.0.1:1?token=s3cret", "http://127.0.0.1:1?@elsewhere.example/"):
        with pytest.raises(HarchError) as unreachable:
            await NotificationSender().send(delivery_to(f"  webhook_configs: [{{url: '{url}'}}]\n"))
        assert str(unreachable.value).startswith("error[E0650]: 127.0.0.1:1: ")
        assert "s3cret" not in str(unreachable.value)
