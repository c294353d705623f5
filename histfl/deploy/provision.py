"""Kits for all machines of a network: an authority of its own, and a certificate a machine (extra deploy)."""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import tomli_w

from histfl.deploy.kits import (
    AUTHORITY,
    CERTIFICATE,
    CLOUD,
    KEY,
    KIT,
    Address,
    Kit,
    KitSettings,
    Parent,
    Role,
    client_name,
    edge_name,
)
from histfl.errors import UsageError, missing_extra
from histfl.files import storage_errors, write_whole
from histfl.network import NetworkDescription

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise missing_extra("histfl deploy", "deploy", error) from None

AUTHORITY_FOLDER = "authority"
DEFAULT_DAYS = 365
MOST_PORT = 65535
EARLIER = timedelta(minutes=10)  # a clock may be behind
USES = {
    "cloud": [ExtendedKeyUsageOID.SERVER_AUTH],
    "edge": [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    "client": [ExtendedKeyUsageOID.CLIENT_AUTH],
}


@dataclass(frozen=True)
class Site:
    """Where the cloud and each cell's edge listen."""

    cloud: Address
    edges: tuple[Address, ...]
    cells: tuple[int, ...]


def site_of(network: NetworkDescription, place: str) -> Site:
    """The addresses that a network file gives."""
    if network.cloud is None:
        raise UsageError(f'{place} does not say where the cloud is; add cloud = "HOST:PORT" at its top')
    edges: list[Address] = []
    for number, block in enumerate(network.cells):
        if len(block.edges) != block.count:
            raise UsageError(
                f"{place}: block {number} of [[cells]] has {block.count} cells and names {len(block.edges)} edges; add "
                f'edges = ["HOST:PORT"], one for each of its cells'
            )
        edges += [_address(each, place) for each in block.edges]
    cloud = _address(network.cloud, place)
    everybody = [cloud, *edges]
    if double := [each for number, each in enumerate(everybody) if each in everybody[:number]]:
        raise UsageError(f"{place} has {double[0].place} twice; give each machine an address of its own")
    return Site(cloud, tuple(edges), tuple(network.clients_per_cell.tolist()))


def _address(text: str, place: str) -> Address:
    host, _, port = text.rpartition(":")
    if int(port) > MOST_PORT:
        raise UsageError(f"{place}: {text!r} has the port {port}; ports are 1 to {MOST_PORT}")
    return Address(host=host.strip("[]"), port=int(port))


def provision(site: Site, out: Path, *, days: int = DEFAULT_DAYS) -> list[Path]:
    """Write the kits that are not there yet into `out`, and return them; those that are there are told of a network that
    changed, and keep their certificates and where they listen. The authority's key stays in `out`/authority; with it
    machines can be added and certificates renewed (delete a kit, and make it anew)."""
    with _private():
        authority = Authority.at(out / AUTHORITY_FOLDER, days)
        written = []
        for about in _kits(site):
            folder = out / about.name
            if (folder / KIT).exists():
                there = Kit.read(folder, about.role).about
                _write_about(folder, about.model_copy(update={"listen": there.listen}))
                continue
            host = about.listen.host if about.listen else None
            certificate, key = authority.issue(about.name, about.role, host, days)
            with storage_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(stat.S_IRWXU)
            write_whole(folder / AUTHORITY, authority.pem)
            write_whole(folder / CERTIFICATE, certificate)
            write_whole(folder / KEY, key)
            write_whole(folder / "README.md", _readme(about, days).encode())
            _write_about(folder, about)
            written.append(folder)
    return written


def _write_about(folder: Path, about: KitSettings) -> None:
    write_whole(folder / KIT, tomli_w.dumps(about.model_dump(mode="json", exclude_none=True)).encode())


@contextmanager
def _private() -> Iterator[None]:
    """What is written inside is its owner's alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _kits(site: Site) -> Iterator[KitSettings]:
    cells = site.cells
    yield KitSettings(role="cloud", name=CLOUD, cells=cells, listen=site.cloud)
    cloud = Parent(name=CLOUD, host=site.cloud.host, port=site.cloud.port)
    client = 0
    for cell, (clients, edge) in enumerate(zip(cells, site.edges, strict=True)):
        yield KitSettings(
            role="edge", name=edge_name(cell), cells=cells, cell=cell, parent=cloud, listen=edge
        )
        parent = Parent(name=edge_name(cell), host=edge.host, port=edge.port)
        for _ in range(clients):
            yield KitSettings(
                role="client", name=client_name(client), cells=cells, cell=cell, client=client, parent=parent
            )
            client += 1


@dataclass(frozen=True)
class Authority:
    certificate: Any
    key: Any

    @classmethod
    def at(cls, folder: Path, days: int) -> Authority:
        """The authority in `folder`, or a new one."""
        if (folder / KEY).exists():
            try:
                return cls(
                    x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes()),
                    serialization.load_pem_private_key((folder / KEY).read_bytes(), None),
                )
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"the authority in {folder} cannot be read: {error}; choose another --out"
                ) from None
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "histfl network")])
        certificate = (
            _begun(name, name, key.public_key(), 10 * days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        own = cls(certificate, key)
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(stat.S_IRWXU)
        write_whole(folder / CERTIFICATE, own.pem)
        write_whole(folder / KEY, _pem_of(key))
        return own

    @property
    def pem(self) -> bytes:
        return bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str, role: Role, host: str | None, days: float, *, ended: float = 0
    ) -> tuple[bytes, bytes]:
        """A certificate and its key, PEM, for the machine of that name; who is called has its host's name in it. It is
        good from now on for so many days, or `ended` so many days ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            _begun(subject, self.certificate.subject, key.public_key(), days, ended)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(USES[role]), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        )
        if host is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), _pem_of(key)


def _begun(subject: Any, issuer: Any, public_key: Any, days: float, ended: float = 0) -> Any:
    now = datetime.now(UTC) - timedelta(days=ended and ended + days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=days))
    )


def _key_usage(*, signs_certificates: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem_of(key: Any) -> bytes:
    return bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


_COMMANDS = {
    "cloud": "histfl cloud . run.toml --out run",
    "edge": "histfl edge .",
    "client": "histfl client . --data package.module:load",
}
_ABOUT = {
    "cloud": "The cloud: it deals out submodels and merges them. `run.toml` is the run's configuration, and `run` its "
    "folder; after an end of any kind the same command with --resume goes on.",
    "edge": "A cell's edge: it averages what its clients send. It waits for the cloud, and may be started before it.",
    "client": "A client: it trains on its own samples, which never leave it. `package.module:load` is a function of "
    "yours that returns them: inputs and targets, or a Dataset. It waits for its edge, and may be started before it.",
}


def _readme(about: KitSettings, days: int) -> str:
    lines = [
        f"# {about.name}",
        _ABOUT[about.role],
        f"In this folder:\n\n    {_COMMANDS[about.role]}",
        f"`{KEY}` proves that a machine is {about.name}: keep it on that machine, readable by its owner alone. The "
        f"certificate is good for {days} days.",
    ]
    if about.listen is not None:
        lines.append(
            f"It listens on {about.listen.host}, port {about.listen.port}. Behind a forwarded port, set `host` of "
            f"[listen] in {KIT} to an address of this machine; the name that others call stands in the certificate."
        )
    return "\n\n".join(lines) + "\n"
