"""Who asks the admin API for something: what a door knows of somebody, and who that is.

A door is a way in: `local` the socket that only the owner of the node can open, `management` the process for HTTP,
which comes in by that socket and says on whose behalf it asks, and `remote` the addresses for operators on other
hosts. Who it is, is looked up for each request, so that a right that is taken away is gone with the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.catalog.catalog import Catalog
    from cluster.objects import Attributes, Role

Door = Literal["local", "management", "remote"]

ADMINISTRATOR: Final = "administrator"
#: Of a name or an address in a request; the longest name of an operator has fewer.
TEXT_MAX: Final = 256

_Text = Annotated[str, Meta(max_length=TEXT_MAX)]


class Caller(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fourth field of a request: on whose behalf the management process asks, and from where that one came."""

    operator: _Text
    address: _Text
    #: Role and Message VPN that it is to be judged by, for an answer that others with the same get too; None: any.
    rights: tuple[_Text, _Text] | None = None


class Claim(NamedTuple):
    """What a door knows of who asks."""

    door: Door
    #: The operator; at `remote` the common name of the certificate; nothing at `local`.
    name: str = ""
    address: str = ""
    #: Role and Message VPN that he has to have; None: any.
    rights: tuple[str, str] | None = None


class Who(NamedTuple):
    """Who asks, as it is judged and written down."""

    name: str
    #: Empty: nobody knows who it is.
    role: Role | Literal[""]
    #: The Message VPN that it is about; empty: the whole node.
    vpn: str
    door: Door
    address: str


#: The claim of the command on the host of the node.
LOCAL: Final = Claim("local")


class Callers:
    """Finds who somebody is."""

    def __init__(self, catalog: Catalog, certificates: Iterable[str], owner: str) -> None:
        """Know these people.

        Args:
            catalog: with the operators that exist.
            certificates: common names of certificates whose holders administer the node (`admin.operators`).
            owner: the user of the operating system that the node is of.
        """
        self._catalog = catalog
        self._certificates = frozenset(certificates)
        self._owner = owner

    def who(self, claim: Claim) -> Who:
        """Give who asks.

        Raises:
            UnauthorizedError: nobody who may ask for anything (40101).
            ForbiddenError: he has other rights than those of the claim (40327).
        """
        door, name, address, rights = claim
        if door == "local":
            return Who(self._owner, ADMINISTRATOR, "", door, address)
        if door == "remote":
            return self._of_certificate(name, address)
        operator = self._catalog.get("operator", "", name)
        if operator is None or not operator["enabled"]:
            detail = f"operator {name!r}, who does not exist or is disabled"
            raise errors.error_for(errors.UNAUTHORIZED, detail)
        if rights not in (None, (operator["role"], operator["vpn"])):
            detail = f"the role or the Message VPN of operator {name!r} was changed just now: ask again"
            raise errors.error_for(errors.OPERATOR_DENIED, detail)
        return Who(name, operator["role"], operator["vpn"], door, address)

    def _of_certificate(self, common_name: str, address: str) -> Who:
        if common_name in self._certificates:
            return Who(common_name, ADMINISTRATOR, "", "remote", address)
        name = self.find("certificate_name", common_name)
        operator = self._catalog.get("operator", "", name) if name else None
        if name is None or operator is None or not operator["enabled"]:
            detail = f"the certificate of {common_name[:64]!r} is not one of an operator"
            raise errors.error_for(errors.UNAUTHORIZED, detail)
        return Who(name, operator["role"], operator["vpn"], "remote", address)

    def is_certified(self, common_name: str) -> bool:
        """Tell whether who shows a certificate of this name is an operator, or would be if that one were enabled."""
        return common_name in self._certificates or self.find("certificate_name", common_name) is not None

    def find(self, attribute: str, value: str) -> str | None:
        """Give the name of the operator of whom an attribute of logins has this value; None if there is none."""
        for (_, name), operator in self._catalog.of_kind("operator").items():
            if value and operator[attribute] == value:
                return name
        return None

    @property
    def vpns_deleted(self) -> int:
        """Give how many Message VPNs were deleted since the process began."""
        return self._catalog.vpns_deleted

    def operator(self, name: str) -> Attributes | None:
        """Give what is known of an operator."""
        return self._catalog.get("operator", "", name)
