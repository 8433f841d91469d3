"""The configuration of a node: one TOML file, every key with its default, its range and a sentence.

    [node]
    name = "berlin-1"

    [router]
    listen = ["tls://0.0.0.0:55555"]
    tls_cert_file = "/etc/angarium/node.pem"
    tls_key_file = "/etc/angarium/node.key"

    [vpn.default]
    max_connection_count = 1000

    [vpn.default.username.alice]
    password_file = "/run/secrets/alice"
    acl_profile = "readers"

Sections are structs; `[router]` and `[worker]` belong to the packages that use them, and so do the limits of `[spool]`;
a default is written only there. `[vpn...]` declares objects: what it names is created or updated at every start, what
it does not name is left alone. Relative paths count from the directory of the file.

The supervisor loads it once and hands each process its part; nothing is read again while the node runs. An
address that others can reach is refused without keys. Nothing here opens a socket.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_type_hints

import msgspec
import tomli_w
from msgspec import Meta

from angarium import errors
from angarium_server.configuration import about, within
from angarium_server.tokens.config import TokenIssuer
from cluster import objects
from cluster.catalog import node_queues
from cluster.configuration import admin, health, http, issuers, management, mqtt, standby
from cluster.configuration.encryption import ca_file_faults, listen_faults
from cluster.configuration.management import OidcSection
from cluster.security import passwords
from node.config import WorkerConfig, WorkerRuntime
from node.tracing import config as tracing
from router.ground.config import RouterConfig, SpoolLimits

if TYPE_CHECKING:
    import os

#: [kind, vpn, name, attributes], as the controller and the admin API exchange them.
DeclaredObject = list[Any]

_VPN_SECTION: Final = "vpn"
_ISSUERS: Final = "issuers"
#: Kinds whose objects are written as [[SECTION]], each with its name under this key.
_LIST_SECTIONS: Final = {
    "links": ("link", "node"),
    "bridges": ("bridge", "name"),
    "webhooks": ("webhook", "name"),
    "operators": ("operator", "name"),
}
#: Kinds whose objects may name a password_file.
_KINDS_WITH_PASSWORD: Final = ("username", "operator")
_LISTED_KINDS: Final = {kind: (section, key) for section, (kind, key) in _LIST_SECTIONS.items()}
#: Disk space of a spool by its content: twice as much, and room to pack blocks again that are half empty.
_MAP_PER_USAGE: Final = 3
#: What may be a target of syslog; `cluster.controller.syslog` sends there.
SYSLOG_PORT: Final = 514
SYSLOG_UDP: Final = re.compile(r"udp://(\[(?P<v6>[^\]]+)\]|(?P<host>[^/:\[\]]+))(:(?P<port>\d{1,5}))?/?")
SYSLOG_UNIX: Final = re.compile(r"unix://(?P<path>/.+)")
#: Shorter secrets could be guessed; longer ones do not fit into HELLO.
SECRET_CHARACTERS_MIN: Final = 16
SECRET_CHARACTERS_MAX: Final = 128


class NodeSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The identity of a node."""

    name: Annotated[
        str, Meta(max_length=64, description="Name of the node; empty: the host name of the first start.")
    ] = ""


class ClusterSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cluster of the node; this section is the same on all its nodes."""

    name: Annotated[
        str, Meta(max_length=64, description="Name of the cluster; nodes of other clusters are refused.")
    ] = "angarium"
    secret_file: Annotated[
        str, about("File with the secret of the cluster; empty: what the node got when it joined, or made.")
    ] = ""
    ca_file: Annotated[
        str,
        about(
            "Authorities that may sign certificates of other nodes (PEM); empty: what the node got when it"
            " joined, authority.pem beside router.tls_cert_file, or those of the system."
        ),
    ] = ""


class SpoolSection(SpoolLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Guaranteed messages: limits and timing of the spool."""

    subscription_exceptions: Annotated[
        bool, about("Whether queues may have exceptions (!FILTER); false: they are refused.")
    ] = True
    map_gb: Annotated[
        int,
        within(
            1, 100_000, "Address space of each worker's spool, sparse; at least three times max_usage_mb."
        ),
    ] = 64
    ack_delay_ms: Annotated[int, within(0, 10_000, "Longest time until a settlement is on disk.")] = 20
    write_delay_ms: Annotated[
        int, within(0, 60_000, "Time after which unsettled messages of relaxed endpoints are on disk.")
    ] = 50
    producers_max: Annotated[int, within(1, 10_000_000, "Producer names that the node remembers.")] = 100_000
    producer_idle_days: Annotated[
        int, within(1, 36_500, "Days without use after which a producer is forgotten.")
    ] = 7
    stage_idle_hours: Annotated[
        int, within(1, 87_600, "Hours without use after which an uncommitted stage is dropped.")
    ] = 24
    vpn_share_percent: Annotated[
        int, within(1, 100, "Share of the node's producer names, sinks and stages for one Message VPN.")
    ] = 50
    username_share_percent: Annotated[int, within(1, 100, "Share of the same for one client username.")] = 10


class EventsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of stored events, and their syslog target."""

    memory_max: Annotated[
        int, within(100, 1_000_000, "Events in memory, which 'angarium events' can show.")
    ] = 10_000
    file_bytes_max: Annotated[int, within(10_000, 1 << 30, "Size at which events.jsonl is rotated.")] = (
        8 << 20
    )
    files_max: Annotated[int, within(1, 100, "Rotated files that are kept.")] = 4
    source_burst: Annotated[
        int, within(10, 100_000, "Events about one username, client or endpoint that are kept at once.")
    ] = 1_000
    source_per_minute: Annotated[
        int, within(1, 100_000, "Events about it that are kept a minute after these.")
    ] = 60
    syslog: Annotated[
        str, about("Syslog target of events: udp://HOST:PORT or unix:///dev/log; empty: none.")
    ] = ""


class AuditSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the audit log, in which it is written down what operators do."""

    file_bytes_max: Annotated[int, within(10_000, 1 << 30, "Size at which audit.jsonl is rotated.")] = 8 << 20
    files_max: Annotated[int, within(1, 1_000, "Rotated files that are kept.")] = 16


class LogSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Logging of all processes."""

    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"], about("Lowest severity that is logged.")
    ] = "INFO"


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration; frozen, because defaults are shared."""

    node: NodeSection = msgspec.field(default_factory=NodeSection)
    cluster: ClusterSection = msgspec.field(default_factory=ClusterSection)
    router: RouterConfig = msgspec.field(default_factory=RouterConfig)
    worker: WorkerConfig = msgspec.field(default_factory=WorkerConfig)
    spool: SpoolSection = msgspec.field(default_factory=SpoolSection)
    mqtt: mqtt.MqttSection = msgspec.field(default_factory=mqtt.MqttSection)
    http: http.HttpSection = msgspec.field(default_factory=http.HttpSection)
    management: management.ManagementSection = msgspec.field(default_factory=management.ManagementSection)
    oidc: OidcSection = msgspec.field(default_factory=OidcSection)
    admin: admin.AdminSection = msgspec.field(default_factory=admin.AdminSection)
    events: EventsSection = msgspec.field(default_factory=EventsSection)
    audit: AuditSection = msgspec.field(default_factory=AuditSection)
    health: health.HealthSection = msgspec.field(default_factory=health.HealthSection)
    standby: standby.StandbySection = msgspec.field(default_factory=standby.StandbySection)
    tracing: tracing.TracingConfig = msgspec.field(default_factory=tracing.TracingConfig)
    log: LogSection = msgspec.field(default_factory=LogSection)
    issuers: list[TokenIssuer] = []
    #: Declared objects, checked; attributes may hold `password_file` instead of `password`.
    objects: list[DeclaredObject] = []


SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "node": NodeSection,
    "cluster": ClusterSection,
    "router": RouterConfig,
    "worker": WorkerConfig,
    "spool": SpoolSection,
    "mqtt": mqtt.MqttSection,
    "http": http.HttpSection,
    "management": management.ManagementSection,
    "oidc": OidcSection,
    "admin": admin.AdminSection,
    "events": EventsSection,
    "audit": AuditSection,
    "health": health.HealthSection,
    "standby": standby.StandbySection,
    "tracing": tracing.TracingConfig,
    "log": LogSection,
}


def load_config(path: str | os.PathLike[str] | None) -> NodeConfig:
    """Give the configuration of a file, or the defaults without one.

    Raises:
        InvalidRequestError: with the first fault; `check_config` gives them all (40017).
    """
    if path is None:
        return NodeConfig()
    config, faults = _read(Path(path))
    if faults:
        raise errors.error_for(errors.INVALID_CONFIGURATION, f"{path}: {faults[0]}")
    return config


def check_config(path: str | os.PathLike[str]) -> list[str]:
    """Give each fault of a file as a sentence that names the key; empty if there is none."""
    config, faults = _read(Path(path))
    return faults or faults_of(config)


def faults_of(config: NodeConfig) -> list[str]:
    """Give what makes a node with this configuration unsafe or impossible, as sentences."""
    faults = listen_faults(config.router)
    faults += _threshold_faults("router", config.router)
    faults += _secret_faults("cluster", config.cluster.secret_file)
    faults += ca_file_faults("cluster.ca_file", config.cluster.ca_file)
    if fault := syslog_fault(config.events.syslog):
        faults.append(f"events.syslog: {fault}")
    faults += mqtt.faults_of(config.mqtt, config.router)
    faults += http.faults_of(config.http, config.router)
    faults += management.faults_of(config.management, config.router, config.issuers)
    faults += management.oidc_faults_of(config.oidc, config.management)
    faults += _secret_file_faults("oidc.client_secret_file", config.oidc.client_secret_file)
    faults += admin.faults_of(config.admin, config.router)
    faults += issuers.faults_of(config.issuers)
    faults += standby.faults_of(config.standby, config.node.name)
    if config.standby.store:
        faults += _pair_faults(config)
    faults += tracing.faults_of(config.tracing) + ca_file_faults("tracing.ca_file", config.tracing.ca_file)
    return faults + _spool_faults(config.spool) + health.faults_of(config.health)


def _secret_file_faults(key: str, path: str) -> list[str]:
    """Give what is wrong with a file whose first line is a secret, if there is one."""
    try:
        if path:
            read_password_file(path)
    except errors.AngariumError as error:
        return [f"{key}: {error.detail}"]
    return []


def syslog_fault(target: str) -> str:
    """Say why a target of syslog is none; nothing if it is one, or empty."""
    udp = SYSLOG_UDP.fullmatch(target)
    port = int(udp["port"] or SYSLOG_PORT) if udp is not None else 0
    if target and not SYSLOG_UNIX.fullmatch(target) and (udp is None or port > 65_535):
        return f"{target!r} is no target: write udp://HOST:PORT or unix:///PATH, for instance unix:///dev/log"
    return ""


def worker_runtime(config: NodeConfig, spool_dir: Path) -> WorkerRuntime:
    """Give the settings of every worker: its section, and its part of the spool's."""
    spool = config.spool
    given: dict[str, Any] = msgspec.to_builtins(config.worker)
    # One limit for a message in all processes: the one in WELCOME.
    given["max_message_bytes"] = config.router.max_message_bytes
    return WorkerRuntime(
        **given,
        spool_dir=str(spool_dir),
        spool_map_bytes=spool.map_gb * 1_000_000_000,
        ack_delay_ms=spool.ack_delay_ms,
        write_delay_ms=spool.write_delay_ms,
        tracing=config.tracing,
    )


def show_config(config: NodeConfig) -> str:
    """Give all keys in force as TOML, and the declared objects without passwords."""
    tables = {name: msgspec.to_builtins(getattr(config, name)) for name in SECTIONS}
    if config.issuers:
        tables[_ISSUERS] = msgspec.to_builtins(config.issuers)
    hidden = [[*key, {k: v for k, v in given.items() if k != "password"}] for *key, given in config.objects]
    return tomli_w.dumps(tables) + ("\n" + export_config(hidden) if hidden else "")


def show_defaults() -> str:
    """Give a sample file: every key with its default, its range and a sentence."""
    parts = []
    for name, struct in SECTIONS.items():
        parts += [f"# {_first_line(struct)}\n[{name}]", *_defaults_of(struct), ""]
    sample = [f"{_first_line(TokenIssuer)}\n[[{_ISSUERS}]]", *_defaults_of(TokenIssuer)]
    parts += [f"# {line}" for line in "\n".join(sample).splitlines()]
    parts += ["", _OBJECTS_SAMPLE]
    return "\n".join(parts)


def _defaults_of(struct: type[msgspec.Struct]) -> list[str]:
    """Give each key of a struct with its default, and a comment above it."""
    shown = []
    for field in msgspec.inspect.type_info(struct).fields:  # type: ignore[attr-defined]
        default = field.default
        if default is msgspec.NODEFAULT:
            default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else "..."
        shown.append(f"{_sentence(field.type)}\n{tomli_w.dumps({field.name: default})}".rstrip())
    return shown


def export_config(declared: list[DeclaredObject]) -> str:
    """Give objects as TOML that `parse_objects` reads again."""
    vpns: dict[str, dict[str, Any]] = {}
    listed: dict[str, list[dict[str, Any]]] = {}
    for kind, vpn, name, attributes in declared:
        if kind in _LISTED_KINDS:
            section, key = _LISTED_KINDS[kind]
            where = {_VPN_SECTION: vpn} if vpn else {}
            listed.setdefault(section, []).append({key: name, **where, **attributes})
        elif kind == _VPN_SECTION:
            vpns.setdefault(name, {}).update(attributes)
        else:
            vpns.setdefault(vpn, {}).setdefault(kind, {})[name] = attributes
    tables = {_VPN_SECTION: vpns, **listed}
    return tomli_w.dumps({name: table for name, table in tables.items() if table})


def parse_objects(text: str, directory: str | os.PathLike[str] = ".") -> list[DeclaredObject]:
    """Give the objects that a TOML text declares, with the passwords of their password files read.

    Args:
        text: a whole configuration file, or the output of `export_config`.
        directory: from where relative paths count.

    Raises:
        InvalidRequestError: with the first fault (40017).
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise errors.error_for(errors.INVALID_CONFIGURATION, str(error)) from None
    if nuls := _nul_faults("", table):
        raise errors.error_for(errors.INVALID_CONFIGURATION, nuls[0])
    declared, faults = _declared_objects(table.get(_VPN_SECTION, {}), Path(directory))
    for section in _LIST_SECTIONS:
        listed, more = _listed_objects(section, table.get(section, []), Path(directory))
        declared, faults = declared + listed, faults + more
    # What stands in a section of a wrong name is not declared, and --prune would delete it.
    faults += [_no_section(name) for name in table if name not in _known_sections()]
    if faults:
        raise errors.error_for(errors.INVALID_CONFIGURATION, faults[0])
    return read_passwords(declared)


def read_passwords(declared: list[DeclaredObject]) -> list[DeclaredObject]:
    """Give the objects with `password_file` replaced by the first line of that file.

    Raises:
        InvalidRequestError: a file cannot be read or is empty (40017).
    """
    resolved = []
    for kind, vpn, name, attributes in declared:
        given = dict(attributes)
        path = given.pop("password_file", None)
        if path is not None:
            given["password"] = read_password_file(path)
        resolved.append([kind, vpn, name, given])
    return resolved


def read_password_file(path: str | os.PathLike[str]) -> str:
    """Give the first line of a password file.

    Raises:
        InvalidRequestError: it cannot be read or its first line is empty (40017).
    """
    try:
        with open(path, encoding="utf-8") as file:
            password = file.readline().rstrip("\r\n")
    except (OSError, ValueError) as error:  # a path may hold a NUL
        raise errors.error_for(errors.INVALID_CONFIGURATION, f"password file {path}: {error}") from None
    if not password:
        detail = f"password file {path}: its first line is empty"
        raise errors.error_for(errors.INVALID_CONFIGURATION, detail)
    return password


def read_pem(path: str | os.PathLike[str]) -> str:
    """Give a file of certificates.

    Raises:
        InvalidRequestError: it cannot be read (40017).
    """
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise errors.error_for(errors.INVALID_CONFIGURATION, f"ca_file {path}: {error}") from None


def _nul_faults(key: str, value: object) -> list[str]:
    """Name the keys of a configuration whose text, or part of it, holds a NUL: no path and no name can have one."""
    if isinstance(value, str):
        return [f"{key}: it holds a NUL character"] if "\0" in value else []
    if isinstance(value, dict):
        named = [fault for name in value for fault in _nul_faults(key or "the name of a section", name)]
        return named + [
            fault for name in value for fault in _nul_faults(f"{key}.{name}".lstrip("."), value[name])
        ]
    return [fault for one in value for fault in _nul_faults(key, one)] if isinstance(value, list) else []


def _read(path: Path) -> tuple[NodeConfig, list[str]]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return NodeConfig(), [str(error)]
    if faults := _nul_faults("", table):
        return NodeConfig(), faults
    directory = path.parent.absolute()
    values: dict[str, Any] = {}
    for name, given in table.items():
        if name == _VPN_SECTION:
            declared, found = _declared_objects(given, directory)
            values["objects"] = [*values.get("objects", ()), *declared]
        elif name in _LIST_SECTIONS:
            declared, found = _listed_objects(name, given, directory)
            values["objects"] = [*values.get("objects", ()), *declared]
        elif name == _ISSUERS:
            values[name], found = _issuers(given, directory)
        elif name in SECTIONS and isinstance(given, dict):
            values[name], found = _section(name, given, directory, SECTIONS[name])
        else:
            found = [_no_section(name)]
        faults += found
    return (NodeConfig() if faults else NodeConfig(**values)), faults


def _known_sections() -> list[str]:
    return [*SECTIONS, _VPN_SECTION, *_LIST_SECTIONS, _ISSUERS]


def _no_section(name: str) -> str:
    return f"{name}: there is no such section{objects.did_you_mean(name, _known_sections())}"


def _issuers(table: Any, directory: Path) -> tuple[list[TokenIssuer], list[str]]:
    """Give the [[issuers]], or the faults of their keys."""
    if not isinstance(table, list) or not all(isinstance(one, dict) for one in table):
        return [], [f"{_ISSUERS}: write [[{_ISSUERS}]], with name = NAME"]
    found, faults = [], []
    for given in table:
        one, its_faults = _section(_ISSUERS, given, directory, TokenIssuer)
        found.append(one)
        faults += its_faults
    return found, faults


def _section(
    name: str, given: dict[str, Any], directory: Path, struct: type[msgspec.Struct]
) -> tuple[Any, list[str]]:
    """Give the struct of a section, or the faults of its keys."""
    types = get_type_hints(struct, include_extras=True)
    known = list(struct.__struct_fields__)
    values = {}
    faults = []
    for key, value in given.items():
        if key not in known:
            faults.append(f"{name}.{key}: there is no such key{objects.did_you_mean(key, known)}")
            continue
        try:
            values[key] = msgspec.convert(value, types[key])
        except msgspec.ValidationError as error:
            faults.append(f"{name}.{key} = {value!r}: {error}")
        if key.endswith("_file") and value and isinstance(value, str):
            values[key] = str(directory / value)
    missing = [
        f"{name}.{field.name}: it is missing"
        for field in msgspec.structs.fields(struct)
        if field.required and field.name not in given
    ]
    faults += missing
    return (None if faults else struct(**values)), faults


def _declared_objects(table: Any, directory: Path) -> tuple[list[DeclaredObject], list[str]]:
    declared: list[DeclaredObject] = []
    faults: list[str] = []
    if not isinstance(table, dict):
        return [], ["vpn: write [vpn.NAME]"]
    for vpn, content in table.items():
        if not isinstance(content, dict):
            faults.append(f"vpn.{vpn}: write [vpn.{vpn}]")
            continue
        kinds = [kind for kind in objects.KINDS if kind not in _LISTED_KINDS]
        inner = {kind: content[kind] for kind in kinds if kind in content}
        own = {key: value for key, value in content.items() if key not in inner}
        found = [["vpn", "", vpn, own]]
        for kind, named in inner.items():
            if isinstance(named, dict) and all(isinstance(given, dict) for given in named.values()):
                found += [[kind, vpn, name, given] for name, given in named.items()]
            else:
                faults.append(f"vpn.{vpn}.{kind}: write [vpn.{vpn}.{kind}.NAME]")
        for kind, owner, name, given in found:
            try:
                declared.append([kind, owner, name, _declared_attributes(kind, name, given, directory)])
            except errors.AngariumError as error:
                where = f"vpn.{vpn}" if kind == _VPN_SECTION else f"vpn.{vpn}.{kind}.{name}"
                own_words = error.code in (errors.INVALID_ATTRIBUTE, errors.INVALID_ARGUMENT)
                faults.append(f"{where}: {error.detail if own_words else error.describe()}")
    order = list(objects.KINDS)
    return sorted(declared, key=lambda entry: order.index(entry[0])), faults


def _listed_objects(section: str, table: Any, directory: Path) -> tuple[list[DeclaredObject], list[str]]:
    """Give the objects of [[SECTION]] tables; one in a Message VPN says in which."""
    kind, key = _LIST_SECTIONS[section]
    if not isinstance(table, list) or not all(isinstance(one, dict) for one in table):
        return [], [f"{section}: write [[{section}]], with {key} = NAME"]
    declared: list[DeclaredObject] = []
    faults: list[str] = []
    for content in table:
        given = dict(content)
        name = given.pop(key, "")
        vpn = given.pop(_VPN_SECTION, objects.DEFAULT_NAME) if objects.kind_of(kind).in_vpn else ""
        for file in [file for file in given if file.endswith("_file") and isinstance(given[file], str)]:
            given[file] = str((directory / given[file]).absolute()) if given[file] else ""
        try:
            objects.check_name(objects.kind_of(kind), name)
            objects.check_name(objects.kind_of("vpn"), vpn or objects.DEFAULT_NAME)
            if kind in ("bridge", "webhook") and (ca_file := given.pop("ca_file", "")):
                given["ca_pem"] = read_pem(ca_file)
            declared.append([kind, vpn, name, _declared_attributes(kind, name, given, directory)])
        except errors.AngariumError as error:
            faults.append(f"{section} {name!r}: {error.detail}")
    return declared, faults


def _declared_attributes(kind: str, name: str, given: dict[str, Any], directory: Path) -> objects.Attributes:
    node_queues.check_declared_name(kind, name, given)
    given = dict(given)
    password_file = given.pop("password_file", None) if kind in _KINDS_WITH_PASSWORD else None
    attributes = objects.convert_declared(kind, given)
    password = attributes.get("password", "")
    if password and not passwords.is_hash(password):
        detail = "a password does not belong into this file: write password_file = PATH, or its scrypt hash"
        raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)
    if password_file is not None:
        if not isinstance(password_file, str) or password:
            detail = "password_file is a path, and stands instead of password"
            raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)
        attributes["password_file"] = str(directory / password_file)
    return attributes


def cluster_secret(section: ClusterSection) -> str:
    """Give the secret of the cluster; empty if there is none.

    Raises:
        InvalidRequestError: the file cannot be read, or its first line is empty (40017).
    """
    return read_password_file(section.secret_file) if section.secret_file else ""


def _secret_faults(section: str, file: str) -> list[str]:
    try:
        secret = read_password_file(file) if file else ""
    except errors.AngariumError as error:
        return [f"{section}.secret_file: {error.detail}"]
    if secret and not SECRET_CHARACTERS_MIN <= len(secret) <= SECRET_CHARACTERS_MAX:
        span = f"{SECRET_CHARACTERS_MIN} to {SECRET_CHARACTERS_MAX}"
        return [f"{section}.secret_file: {file} holds {len(secret)} characters: write {span}"]
    return []


def _pair_faults(config: NodeConfig) -> list[str]:
    """Give what two hosts of one node need beyond the section of the standby."""
    faults = _secret_faults("standby", config.standby.secret_file)
    if not config.standby.secret_file:
        faults.append("standby.secret_file: both hosts need the same secret in a file")
    if not config.node.name:
        faults.append("node.name: both hosts of a node need the same name, written in the file")
    if config.standby.listen.startswith("tls://") and not config.router.tls_cert_file:
        faults.append(
            f"standby.listen = {config.standby.listen}: it needs router.tls_cert_file and tls_key_file"
        )
    return faults


def _spool_faults(spool: SpoolSection) -> list[str]:
    faults = []
    needed = -(-spool.max_usage_mb * _MAP_PER_USAGE // 1_000)
    if spool.map_gb < needed:
        faults.append(
            f"spool.map_gb = {spool.map_gb}: max_usage_mb = {spool.max_usage_mb} needs {needed} or more"
        )
    return faults + _threshold_faults("spool", spool)


def _threshold_faults(section: str, values: msgspec.Struct) -> list[str]:
    """Find events whose clear percentage is above the one that raises them."""
    faults = []
    for field in values.__struct_fields__:
        cleared = getattr(values, field)
        raised = f"{field.removesuffix('_clear_percent')}_set_percent"
        if field.endswith("_clear_percent") and cleared > getattr(values, raised):
            faults.append(f"{section}.{field} = {cleared}: it is at most {raised}")
    return faults


def _sentence(kind: Any) -> str:
    """Give the comment above a key: its sentence, and its range if it has one."""
    schema = (kind.extra_json_schema or {}) if isinstance(kind, msgspec.inspect.Metadata) else {}
    inner: Any = kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind
    low, high = getattr(inner, "ge", None), getattr(inner, "le", None)
    span = f" [{low}..{high}]" if low is not None and high is not None else ""
    return f"# {schema.get('description', '')}{span}"


def _first_line(struct: type[msgspec.Struct]) -> str:
    return (struct.__doc__ or "").strip().splitlines()[0]


_OBJECTS_SAMPLE: Final = """# Objects can be declared too; 'angarium config export' prints those that exist:
# [vpn.orders]
# max_connection_count = 500
# [vpn.orders.acl.readers]
# client_connect_default = "allow"
# subscribe_topic_exceptions = ["orders/>"]
# [vpn.orders.username.alice]
# password_file = "alice.password"
# acl_profile = "readers"
# [vpn.orders.queue."in/eu"]
# subscriptions = ["orders/eu/>", "!orders/eu/test/>"]
# permission = "consume"
# [[links]]
# node = "berlin-2"
# addresses = ["tls://10.0.0.2:55555"]
# [[bridges]]
# name = "from-sales"
# vpn = "orders"
# remote_vpn = "sales"
# remote_subscriptions = ["sold/>"]
# [[webhooks]]
# name = "to-billing"
# vpn = "orders"
# queue = "in/eu"
# username = "alice"
# url = "https://billing.example.com/orders"
# [[operators]]
# name = "anna"
# role = "administrator"
# password_file = "anna.password"
"""
