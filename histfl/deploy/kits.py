"""A machine's kit: who it is, whom it calls, who may call it, and the certificate that proves it."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from histfl.errors import UsageError, article
from histfl.settings import Settings, Whole, checked, read_toml

_log = logging.getLogger(__name__)
KIT = "kit.toml"
AUTHORITY, CERTIFICATE, KEY = "authority.pem", "certificate.pem", "key.pem"
CLOUD = "cloud"
Role = Literal["cloud", "edge", "client"]
Port = Annotated[int, Field(strict=True, ge=0, le=65535)]


def edge_name(cell: int) -> str:
    return f"edge{cell}"


def client_name(client: int) -> str:
    return f"c{client}"


class Address(Settings):
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,253}$")]
    port: Port

    @property
    def place(self) -> str:
        """HOST:PORT, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Parent(Address):
    name: str


class KitSettings(Settings):
    """kit.toml. `cells` are the clients of each cell of the whole network; an edge or a client is of one `cell`."""

    role: Role
    name: Annotated[str, Field(pattern=r"^[a-z0-9]{1,20}$")]
    cells: tuple[Annotated[int, Field(strict=True, ge=1)], ...] = Field(min_length=1)
    cell: Whole | None = None
    client: Whole | None = None
    parent: Parent | None = None
    listen: Address | None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> KitSettings:
        has = {"parent": self.parent, "listen": self.listen, "cell": self.cell, "client": self.client}
        needs = {
            "cloud": {"listen"},
            "edge": {"parent", "listen", "cell"},
            "client": {"parent", "cell", "client"},
        }
        for key, value in has.items():
            if (value is not None) != (key in needs[self.role]):
                raise ValueError(
                    f"{key}: {'missing' if value is None else 'not'} in the kit of a {self.role}"
                )
        if self.cell is not None and not 0 <= self.cell < len(self.cells):
            raise ValueError(f"cell = {self.cell}, and the network has {len(self.cells)} cells")
        if self.client is not None and self.client not in self.clients_of(self.cell or 0):
            raise ValueError(f"client = {self.client} is none of cell {self.cell}")
        return self

    def clients_of(self, cell: int) -> range:
        """The numbers of a cell's clients in the network."""
        first = sum(self.cells[:cell])
        return range(first, first + self.cells[cell])


@dataclass(frozen=True)
class Kit:
    """A kit's folder."""

    folder: Path
    about: KitSettings

    @classmethod
    def read(cls, folder: Path, role: Role) -> Kit:
        """The kit in `folder`, which is to be of that role."""
        path = folder / KIT
        if not path.is_file():
            raise UsageError(
                f"{folder} is no kit: it has no {KIT}; make kits with histfl deploy init NETWORK.toml"
            )
        about = checked(KitSettings, read_toml(path), str(path))
        if about.role != role:
            raise UsageError(
                f"{folder} is the kit of {article(about.role)}; start it with histfl {about.role} {folder}"
            )
        for name in (AUTHORITY, CERTIFICATE, KEY):
            if not (folder / name).is_file():
                raise UsageError(f"{folder} has no {name}; take the whole kit, as histfl deploy init made it")
        if os.name == "posix" and (folder / KEY).stat().st_mode & 0o077:
            _log.warning("others than its owner may read %s; chmod 600 %s", folder / KEY, folder / KEY)
        return cls(folder, about)

    @property
    def name(self) -> str:
        return self.about.name

    @property
    def parent(self) -> Parent:
        assert self.about.parent is not None
        return self.about.parent

    @property
    def listen(self) -> Address:
        assert self.about.listen is not None
        return self.about.listen

    @property
    def children(self) -> tuple[str, ...]:
        """Who may call: the edges call the cloud, a cell's clients its edge."""
        if self.about.cell is None:
            return tuple(map(edge_name, range(len(self.about.cells))))
        return tuple(map(client_name, self.about.clients_of(self.about.cell)))

    def as_server(self) -> ssl.SSLContext:
        """TLS for those who call here: nobody without a certificate of this network."""
        return self._context(ssl.Purpose.CLIENT_AUTH)

    def as_caller(self) -> ssl.SSLContext:
        """TLS for calling the parent: its certificate must be of this network and of its host's name."""
        return self._context(ssl.Purpose.SERVER_AUTH)

    def _context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        protocol = ssl.PROTOCOL_TLS_SERVER if purpose is ssl.Purpose.CLIENT_AUTH else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(protocol)  # no authority of the system's is trusted
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        if purpose is ssl.Purpose.CLIENT_AUTH:
            context.num_tickets = 0  # each connection shows its certificate anew, or its date would not count
        try:
            context.load_verify_locations(self.folder / AUTHORITY)
            context.load_cert_chain(self.folder / CERTIFICATE, self.folder / KEY)
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or error.strerror or "unreadable"
            raise UsageError(
                f"the certificates in {self.folder} cannot be used ({reason}); take the kit anew from those that "
                "histfl deploy init made"
            ) from None
        return context
