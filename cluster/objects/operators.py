"""Operators: who manages the node, or one Message VPN of it, and what each of them may do."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

from cluster.objects.attributes import Text, own

#: Stands before a colon in HTTP, and in texts.
OPERATOR_NAME: Final = re.compile(r"[^:*?\s\x00-\x1f\x7f\ud800-\udfff]{1,64}")
OPERATOR_RULE: Final = "1 to 64 characters without : * ? and blanks"

#: What an operator may do; each may all that the ones before it may.
Role = Literal["viewer", "operator", "administrator"]
#: Attributes by which an operator is found at a login: no two operators have the same.
LOGIN_NAMES: Final = ("certificate_name", "token_subject")


class Operator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator: an account that manages the node, or one Message VPN."""

    enabled: Annotated[bool, own("Whether the operator may do anything, and log in.")] = True
    role: Annotated[
        Role,
        own(
            "viewer sees, operator also works with messages, clients and endpoints, administrator may do everything in "
            "its scope."
        ),
    ] = "viewer"
    vpn: Annotated[Text, own("Message VPN that it is about; empty: the whole node.")] = ""
    password: Annotated[Text, own("Password of logins over HTTP, stored as a hash; empty: none fits.")] = ""
    certificate_name: Annotated[
        Text, own("Common name of the certificate that the operator shows; empty: none.")
    ] = ""
    token_subject: Annotated[
        Text, own("Subject of the tokens (JWT) that the operator shows; empty: none.")
    ] = ""
