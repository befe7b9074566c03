"""How does a message leave? One attempt over HTTP or SMTP. Secrets are read here, used, and never logged."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import smtplib
import ssl
from contextvars import ContextVar
from email.message import EmailMessage
from email.utils import getaddresses
from pathlib import Path

import httpx

from harch.base.egress import NotPermitted
from harch.base.errors import HarchError
from harch.base.guarded_http import HttpAddress, address_in, http_address
from harch.base.hosts import read_host
from harch.sentinel.alerts.config import SECRET_CHARS_MAX, EmailTo, HttpOptions, Secret, SlackTo, WebhookTo, revealed
from harch.sentinel.alerts.delivery import Delivery
from harch.sentinel.alerts.notify.messages import mail, slack_body, webhook_body

_is_sending: ContextVar[bool] = ContextVar("is_sending", default=False)


class _NoAddresses(logging.Filter):
    """The HTTP library logs every address at INFO, and addresses of webhooks carry tokens."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _is_sending.get()


logging.getLogger("httpx").addFilter(_NoAddresses())

ATTEMPT_S_MAX = 10.0
ANSWER_BYTES_MAX = 4_096
RECIPIENTS_MAX = 100


class FilesAndVariables:
    """Where secrets really are."""

    def file(self, path: str) -> str | None:
        try:
            with Path(path).open(encoding="utf-8") as opened:
                return opened.read(SECRET_CHARS_MAX + 1)
        except (OSError, UnicodeDecodeError):
            return None

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


class NotificationSender:
    """Sends one delivery once. Raises E0650 with `retry` in its meta, E0641 or E0651 when it is not worth repeating."""

    def __init__(self, secrets: FilesAndVariables | None = None) -> None:
        self._secrets = secrets or FilesAndVariables()

    async def send(self, delivery: Delivery) -> None:
        target, notice = delivery.integration, delivery.notice
        match target:
            case WebhookTo():
                body = webhook_body(notice, max_alerts=target.max_alerts)
                await self._post(target.url, target.http, body, target.timeout_ms)
            case SlackTo():
                body = slack_body(target, notice)
                await self._post(target.url, target.http, body, target.timeout_ms)
            case EmailTo():
                message = mail(target, notice, message_id=_message_id(delivery, target))
                password = revealed(target.password, self._secrets) if target.user else ""
                await asyncio.to_thread(send_mail, target, message, password)

    async def _post(self, url: Secret, options: HttpOptions, body: bytes, timeout_ms: int) -> None:
        address = revealed(url, self._secrets)
        headers = {"Content-Type": "application/json", "User-Agent": "HarchOS-SENTINEL"}
        if options.token.is_set:
            headers["Authorization"] = f"{options.token_type} {revealed(options.token, self._secrets)}"
        user = (options.user, revealed(options.password, self._secrets)) if options.user else None
        timeout_s = timeout_ms / 1000 if timeout_ms else ATTEMPT_S_MAX
        try:
            at = http_address(address)
        except ValueError:
            raise not_sent(f"the address in {url.where} cannot be read", retry=False) from None
        host = f"{at.host}:{at.port}"
        before = _is_sending.set(True)
        try:
            async with (
                asyncio.timeout(timeout_s),
                httpx.AsyncClient(
                    transport=_OneHost(
                        at,
                        _trust(options.ca_file, options.certificate_file, options.key_file, insecure=options.insecure),
                    ),
                    auth=user,
                    follow_redirects=options.follows_redirects,
                    timeout=timeout_s,
                    trust_env=False,
                ) as client,
                client.stream("POST", address, content=body, headers=headers) as answer,
            ):
                received = b""
                async for part in answer.aiter_bytes():
                    received += part
                    if len(received) >= ANSWER_BYTES_MAX:
                        break
                status = answer.status_code
        except NotPermitted as error:
            raise not_sent(f"{host} {error}", retry=False) from None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            # The text of the error may carry the whole address, and with it a token.
            raise not_sent(f"{host}: {type(error).__name__}", retry=True) from None
        finally:
            _is_sending.reset(before)
        if status // 100 != 2:
            reason = received[:200].decode(errors="replace")
            raise not_sent(f"{host} answered {status}: {reason}", retry=status == 429 or status >= 500)


class _OneHost(httpx.AsyncHTTPTransport):
    """Alerts go to the host that the configuration names. A redirect may change scheme and path, not the host."""

    def __init__(self, at: HttpAddress, verify: ssl.SSLContext) -> None:
        super().__init__(verify=verify, trust_env=False)
        self._at = at

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            host = address_in(request.url).host
        except ValueError:
            host = ""
        if host != self._at.host:
            raise NotPermitted("redirects to a host that is not in the configuration")
        return await super().handle_async_request(request)


def send_mail(target: EmailTo, message: EmailMessage, password: str) -> None:
    """Blocks; for a thread. Port 465 speaks TLS from the start, others by STARTTLS where it is required or offered."""
    host, _, port = target.smarthost.rpartition(":")
    recipients = [address for _, address in getaddresses([str(message["To"])]) if address][:RECIPIENTS_MAX]
    sender = getaddresses([target.sender])[0][1]
    if not recipients:
        raise not_sent("the mail has no recipient", retry=False)
    try:
        context = _trust(target.ca_file, "", "", insecure=target.insecure)
        tls_at_once = port == "465"
        with (
            smtplib.SMTP_SSL(read_host(host), int(port), target.hello, timeout=ATTEMPT_S_MAX, context=context)
            if tls_at_once
            else smtplib.SMTP(read_host(host), int(port), target.hello, timeout=ATTEMPT_S_MAX)
        ) as server:
            server.ehlo()
            if not tls_at_once and (target.require_tls or server.has_extn("starttls")):
                if not server.has_extn("starttls"):
                    raise not_sent(
                        f"{target.smarthost} does not support STARTTLS, but `require_tls` is set", retry=False
                    )
                server.starttls(context=context)
                server.ehlo()
            if target.user:
                server.login(target.user, password)
            server.send_message(message, from_addr=sender, to_addrs=recipients)
    except smtplib.SMTPAuthenticationError as error:
        raise not_sent(f"{target.smarthost} rejected the user ({error.smtp_code})", retry=False) from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        code = getattr(error, "smtp_code", 0)
        permanent = isinstance(error, smtplib.SMTPRecipientsRefused) or (isinstance(code, int) and code >= 500)
        raise not_sent(
            f"{target.smarthost}: {type(error).__name__} {code or ''}".strip(), retry=not permanent
        ) from None


def _message_id(delivery: Delivery, target: EmailTo) -> str:
    """The same for every attempt, so that a mailbox can tell a repeated attempt from news."""
    named = f"{delivery.receiver}|{delivery.notice.group_key}|{delivery.notice.now_ms}"
    domain = target.sender.rpartition("@")[2].strip("> ") or "localhost"
    return f"<{hashlib.sha256(named.encode()).hexdigest()[:32]}@{domain}>"


def _trust(ca_file: str, certificate_file: str, key_file: str, *, insecure: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file or None)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate_file:
        context.load_cert_chain(certificate_file, key_file or None)
    return context


def not_sent(what: str, *, retry: bool) -> HarchError:
    hint = "it will be retried" if retry else "correct the receiver in the alert configuration"
    return HarchError("E0650", what, hint=hint, meta={"retry": retry})
