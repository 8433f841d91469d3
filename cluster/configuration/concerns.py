"""What an operator should see to in a configuration that is good: the node runs with it, and it is paid for later."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cluster.configuration.secret_files import exposed

if TYPE_CHECKING:
    from cluster.configuration.config import NodeConfig


def concerns_of(config: NodeConfig) -> list[str]:
    """Give what is to be seen to, as sentences: secrets that others may read, certificates that end."""
    return exposed(config) + ending_certificates(config)


def ending_certificates(config: NodeConfig) -> list[str]:
    """Give a sentence for each certificate of the node that has ended or soon will."""
    shown = {
        "router.tls_cert_file": config.router.tls_cert_file,
        "admin.tls_cert_file": config.admin.tls_cert_file,
        "http.tls_cert_file": config.http.tls_cert_file,
        "management.tls_cert_file": config.management.tls_cert_file,
    }
    files = {key: file for key, file in shown.items() if file}
    if not files:
        return []
    from cluster.security.certificates import ending  # a node without certificates does without the library

    return ending(files, datetime.now(UTC))
