"""The outside store that is configured. In a pod of Kubernetes it finds its API server by what every pod is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from angarium import errors
from cluster.standby.stores.etcd import EtcdStore, Login
from cluster.standby.stores.etcd_words import Transactions
from cluster.standby.stores.http import Servers, Trust, read_secret
from cluster.standby.stores.kubernetes import LeaseStore
from cluster.standby.stores.manual import ManualStore
from cluster.standby.stores.store import NoAnswerError

if TYPE_CHECKING:
    from cluster.configuration.standby import StandbySection
    from cluster.standby.pair.outside import Holder
    from cluster.standby.stores.store import Store

#: Where a pod has what belongs to its service account.
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: In the data directory: what the operator decided.
MANUAL_FILE: Final = "standby.json"


def open_store(
    section: StandbySection, node_id: str, me: Holder, data: Path, account: Path = ACCOUNT
) -> Store:
    """Give the store of the section, for one holder; within a running loop.

    Args:
        section: with a store, without faults.
        node_id: of the node that both hosts are.
        me: this start of this host.
        data: the data directory.
        account: of the pod.

    Raises:
        InvalidRequestError: this is no pod, and the section does not say what a pod is told (40017).
        ValueError: the holder has no name.
    """
    match section.store:
        case "etcd":
            transactions = Transactions(section.prefix, node_id)
            login = Login(section.username, section.password_file)
            trust = Trust(section.ca_file, section.cert_file, section.key_file)
            servers = Servers(section.endpoints, trust)
            return EtcdStore(me, transactions, servers, login, section.lease_seconds)
        case "kubernetes":
            try:
                return _lease_store(section, node_id, me, account)
            except NoAnswerError as error:
                raise errors.error_for(errors.INVALID_CONFIGURATION, error.reason) from None
        case "manual":
            return ManualStore(me, data / MANUAL_FILE)
    raise ValueError("there is no outside store in this configuration")


def _lease_store(section: StandbySection, node_id: str, me: Holder, account: Path) -> LeaseStore:
    """Give a store with what the section says, and for the rest what the pod has."""
    own_ca = str(account / "ca.crt") if (account / "ca.crt").exists() else ""
    own_token = str(account / "token") if (account / "token").exists() else ""
    urls = section.endpoints or [_api_server()]
    return LeaseStore(
        me,
        f"{section.prefix}-{node_id}",
        section.namespace or read_secret(str(account / "namespace")),
        Servers(urls, Trust(section.ca_file or own_ca, section.cert_file, section.key_file)),
        section.token_file or own_token,
        section.lease_seconds,
    )


def _api_server() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise NoAnswerError("this is no pod of Kubernetes: write standby.endpoints")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
