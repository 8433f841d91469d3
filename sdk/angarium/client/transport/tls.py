"""ZMTP inside of TLS: bytes in, messages out; messages in, bytes out, with the calls of `zmtp`, which it contains.

TLS works in memory here (`ssl.MemoryBIO`), and `angarium.client.transport.stream` has the socket, the same as without
TLS. So nothing waits inside of TLS that the event loop does not know of, no direction waits for the other one, a send
that the socket takes in part goes on where it stopped, and what comes takes one system call for all of its records;
`ssl.SSLSocket` needs two for each of them.

An end without the goodbye of TLS is an end like any other: each frame says its length, so one that was cut off is not
taken for a whole one.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final

from angarium.client.transport.zmtp import CLOSED, Zmtp, ZmtpError, shared_room
from angarium.errors import TLS_FAILED, AngariumError, error_for

#: Encrypted together: the library keeps room for the most that it ever held, and a message may be far larger. Blocks
#: of this size come from the heap; larger ones are mapped each time, which takes as long as the encryption.
SEAL_BYTES: Final = 64 * 1024
#: Given away in so many pieces at most; the system takes 1,024.
SEAL_PIECES: Final = 400
#: What is known of an address that answers otherwise.
NOT_TLS: Final = "it does not speak TLS"
#: Reasons of the library for bytes that are no TLS.
_NO_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "HTTP",
    "UNKNOWN_PROTOCOL",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
)
#: Refusals of the other side, and reasons of ours, that are about what both could speak.
_NO_COMMON: Final = (
    "PROTOCOL_VERSION",
    "UNSUPPORTED_PROTOCOL",
    "NO_PROTOCOLS_AVAILABLE",
    "INSUFFICIENT_SECURITY",
)
#: With what a node says that it wants a certificate of the client, in TLS 1.3; in 1.2 it can mean other things too.
_NO_CERTIFICATE: Final = ("CERTIFICATE_REQUIRED", "ALERT_HANDSHAKE_FAILURE")
#: Words in refusals of a certificate of ours.
_BAD_CERTIFICATE: Final = ("ALERT_UNKNOWN_CA", "CERTIFICATE", "ACCESS_DENIED", "DECRYPT_ERROR")

# Results of the check of a certificate: https://docs.openssl.org/3.0/man3/X509_STORE_CTX_get_error/
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_WITHOUT_AUTHORITY: Final = (18, 19, 20, 21)
_OTHER_NAMES: Final = (62, 64)


class Tls:
    """One connection."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        """Begin before the handshake.

        Args:
            context: whom to trust, and who we are.
            host: the name or IP address that the certificate of the other side must have.

        Raises:
            ValueError: there cannot be a host of this name.
            ssl.SSLError: the context is none for clients.
        """
        #: Whether the other side said READY too.
        self.is_open = False
        #: Whether messages may be sent.
        self.may_send = False
        self._is_secured = False
        self._host = host.partition("%")[0]
        self._zmtp = Zmtp(at_once=True)  # who has shown the right certificate is the right one
        #: What came, encrypted; empty but for a part of a record whenever `received` is over.
        self._incoming = ssl.MemoryBIO()
        #: What is to be sent, encrypted; empty whenever it was given away.
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=self._host)

    def start(self) -> bytes:
        """Give what is sent first."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._outgoing.read()

    def peer_certificate(self) -> bytes:
        """Give what the other side showed of itself (DER); the handshake is over."""
        shown = self._tls.getpeercert(binary_form=True)
        assert shown is not None, "a server shows a certificate"
        return shown

    def seal(self, pieces: list[bytes]) -> list[bytes]:
        """Give what is sent for the pieces of messages."""
        data = b"".join(pieces)
        sealed = []
        with memoryview(data) as view:
            for start in range(0, len(data), SEAL_BYTES):
                self._encrypt(view[start : start + SEAL_BYTES])
                sealed.append(self._outgoing.read())
        return sealed if len(sealed) <= SEAL_PIECES else [b"".join(sealed)]

    def farewell(self) -> bytes:
        """Give what is sent last, which may be nothing."""
        with contextlib.suppress(ssl.SSLError):  # among them: the other side has yet to say it too
            self._tls.unwrap()
        return self._outgoing.read()

    def room(self) -> memoryview:
        """Give the place for what comes next, to be let go before `received`."""
        return shared_room()  # from where it is taken before anything is decrypted to there

    def received(self, count: int, messages: list[list[bytes]]) -> None:
        """Take in so many bytes that were put into `room`.

        Args:
            count: how many.
            messages: gets those that are complete; after an error too, since they came before it.

        Raises:
            ZmtpError: they cannot be understood, or the other side has ended the connection.
            ConnectionLostError: the handshake failed, and how to mend that (TLS_FAILED).
        """
        self._incoming.write(shared_room()[:count])
        try:
            if not self._is_secured:
                self._tls.do_handshake()
                self._is_secured = True
                self._encrypt(self._zmtp.start())
                self.may_send = self._zmtp.may_send
            while self._incoming.pending or self._tls.pending():
                self._decrypt(messages)
        except ssl.SSLWantReadError:
            pass  # the rest of a record has yet to come
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            raise ZmtpError(self.at_end()) from None
        except ssl.SSLError as error:
            if self.is_open:
                raise ZmtpError(f"TLS failed: {_reason(error)}") from None
            raise _explained(error, self._host) from None

    def take_replies(self) -> bytes:
        """Give what is to be sent for what came."""
        return self._outgoing.read()

    def at_end(self) -> str:
        """Say what it means that nothing more comes."""
        if self.is_open:
            return CLOSED
        if self._is_secured:
            return f"{CLOSED} after the TLS handshake: is it a node, and does it want a cert_file?"
        return f"{CLOSED} within the TLS handshake: is it a node, does it listen with tls://, does it want a cert_file?"

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self._is_secured or not (self.is_open or self.may_send)
        assert self.is_open == self._zmtp.is_open
        assert not self._tls.pending()
        self._zmtp.validate()

    def _decrypt(self, messages: list[list[bytes]]) -> None:
        """Hand on what is there, as far as there is room."""
        room = self._zmtp.room()
        count = 0
        try:
            while count < len(room) and (self._incoming.pending or self._tls.pending()):
                with room[count:] as rest:
                    more = self._tls.read(len(rest), rest)
                if not more:  # the goodbye
                    raise ZmtpError(self.at_end())
                count += int(more)
        finally:
            room.release()
            if count:
                self._hand_on(count, messages)

    def _hand_on(self, count: int, messages: list[list[bytes]]) -> None:
        self._zmtp.received(count, messages)
        self.is_open, self.may_send = self._zmtp.is_open, self._zmtp.may_send
        if replies := self._zmtp.take_replies():
            self._encrypt(replies)

    def _encrypt(self, data: bytes | memoryview) -> None:
        """Put bytes into records, one at a time, as the library does it."""
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                done += self._tls.write(view[done:])


def _reason(error: ssl.SSLError) -> str:
    """Give the reason of the library in words: `wrong version number`."""
    return (error.reason or error.strerror or str(error)).replace("_", " ").lower()


def _refused(what: str, advice: str) -> AngariumError:
    return error_for(TLS_FAILED, what, advice)


def _explained(error: ssl.SSLError, host: str) -> AngariumError:
    """Say what was wrong with a handshake, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _distrusted(error, host)
    reason = error.reason or ""
    if any(part in reason for part in _NO_TLS):
        return _refused(NOT_TLS, "write tcp://HOST:PORT if the node listens there without TLS")
    if any(part in reason for part in _NO_COMMON):
        return _refused("there is no version of TLS that both speak", "both need TLS 1.2 or later")
    if any(part in reason for part in _NO_CERTIFICATE):
        what = f"it refused the handshake ({_reason(error)}), as a node does that demands a certificate of the client"
        return _refused(what, "give cert_file and key_file")
    if any(part in reason for part in _BAD_CERTIFICATE):
        what = f"it refused the certificate of this client ({_reason(error)})"
        return _refused(
            what, "give as cert_file one that an authority of the node signed and that is still valid"
        )
    return _refused(_reason(error), "")


def _distrusted(error: ssl.SSLCertVerificationError, host: str) -> AngariumError:
    code, why = error.verify_code, error.verify_message
    if code in _OTHER_NAMES:
        advice = "connect to a name or IP address that is in its certificate, or have this one added there"
        return _refused(f"its certificate is not for {host!r}", advice)
    if code == _EXPIRED:
        return _refused(
            "its certificate has expired", "the node needs a new one; or the clock of this host is wrong"
        )
    if code == _NOT_YET_VALID:
        return _refused("its certificate is not valid yet", "check the clocks of the node and of this host")
    if code in _WITHOUT_AUTHORITY:
        advice = (
            "give as ca_file, in commands --ca-file FILE, the certificate of the authority that signed it,"
            " if you trust that"
        )
        return _refused(f"no authority that is trusted here signed its certificate ({why})", advice)
    return _refused(f"its certificate cannot be trusted ({why})", "")
