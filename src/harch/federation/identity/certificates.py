"""What proves that a connection comes from a hub? X.509 certificates, made and read here; no file and no clock.

All keys are Ed25519. A certificate lasts seven days and is replaced daily, so a hub that cannot reach the authority for
some days keeps its links (ADR 22). It names exactly one hub, as a URI in the SAN.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from harch.base.errors import HarchError
from harch.federation.identity.members import HubName, parse_uri

AUTHORITY_LIFE = timedelta(days=3650)
CERTIFICATE_LIFE = timedelta(days=7)
RENEW_AFTER = timedelta(days=1)
CLOCK_SKEW_MAX = timedelta(minutes=5)  # a certificate starts earlier by this much: the peer's clock may be behind


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a hub's certificate says."""

    name: HubName
    not_before: datetime
    not_after: datetime
    der: bytes

    def is_valid(self, now: datetime) -> bool:
        return self.not_before <= now < self.not_after

    def is_for(self, key: Ed25519PrivateKey) -> bool:
        return x509.load_der_x509_certificate(self.der).public_key() == key.public_key()

    def is_due(self, now: datetime) -> bool:
        """Time for a new one: a day old, or not valid at all."""
        return now >= self.not_before + CLOCK_SKEW_MAX + RENEW_AFTER or not self.is_valid(now)


def make_authority(trust_domain: str, key: Ed25519PrivateKey, *, now: datetime) -> bytes:
    """The self-signed certificate (DER) of a federation. It may sign hubs, and no further authority."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"HarchOS federation {trust_domain}"[:64])])
    usage = _key_usage(signs_certificates=True)
    return (
        _draft(subject, subject, key.public_key(), now, now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{trust_domain}")]), False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, None)
        .public_bytes(Encoding.DER)
    )


def make_request(name: HubName, key: Ed25519PrivateKey) -> bytes:
    """A signing request (DER): shows that whoever asks for the certificate has the key."""
    return (
        x509.CertificateSigningRequestBuilder().subject_name(_subject(name)).sign(key, None).public_bytes(Encoding.DER)
    )


def issue(
    name: HubName,
    request: bytes,
    *,
    authority: bytes,
    key: Ed25519PrivateKey,
    now: datetime,
    life: timedelta = CERTIFICATE_LIFE,
) -> bytes:
    """The certificate (DER) for the key in `request`. Of the request only the key is taken: the name is `name`."""
    issuer = x509.load_der_x509_certificate(authority)
    return (
        _draft(_subject(name), issuer.subject, _requested_key(request), now, now + life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name.uri)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, None)
        .public_bytes(Encoding.DER)
    )


def read_certificate(der: bytes) -> Certificate:
    """Raises E0110 for a certificate that does not name exactly one hub."""
    try:
        parsed = x509.load_der_x509_certificate(der)
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise _not_a_hub() from error
    name = parse_uri(uris[0]) if len(names) == len(uris) == 1 else None
    if name is None:
        raise _not_a_hub()
    return Certificate(name, parsed.not_valid_before_utc, parsed.not_valid_after_utc, der)


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    try:
        issuer = x509.load_der_x509_certificate(authority)
        x509.load_der_x509_certificate(certificate).verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def authority_key(authority: bytes) -> Ed25519PublicKey:
    """The key that signs certificates and member records."""
    key = x509.load_der_x509_certificate(authority).public_key()
    if not isinstance(key, Ed25519PublicKey):
        raise HarchError("E0110", "the federation's authority has no Ed25519 key", hint="create the federation again")
    return key


def fingerprint(der: bytes) -> bytes:
    return sha256(der).digest()


def _requested_key(request: bytes) -> Ed25519PublicKey:
    try:
        parsed = x509.load_der_x509_csr(request)
    except ValueError as error:
        raise HarchError("E0201", "this is not a certificate signing request", hint="send PKCS #10 in DER") from error
    key = parsed.public_key()
    if not parsed.is_signature_valid or not isinstance(key, Ed25519PublicKey):
        raise HarchError("E0201", "the signing request is not signed by its own Ed25519 key", hint="make a new one")
    return key


def _draft(
    subject: x509.Name, issuer: x509.Name, key: Ed25519PublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - CLOCK_SKEW_MAX)
        .not_valid_after(end)
    )


def _subject(name: HubName) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name.hub_id)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _not_a_hub() -> HarchError:
    return HarchError("E0110", "the certificate does not name exactly one hub", hint="let the hub join again")
