"""Receivers of notifications on this machine: of HTTP, of HTTPS, and of SMTP."""

import contextlib
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.waiting import until


@dataclass
class Received:
    """A request that a receiver got."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """An HTTP server that keeps what it gets, and answers as it is told."""

    url: str
    requests: list[Received] = field(default_factory=list)
    status: int = 204
    answer: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    slow: float = 0.0  # seconds between two bytes of the answer

    def wait_for(self, number: int) -> list[Received]:
        """Return the requests once there are so many."""
        until(lambda: len(self.requests) >= number, f"expected {number} requests")
        return self.requests


@contextlib.contextmanager
def http_receiver(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Yield a running receiver at 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            lower = {name.lower(): value for name, value in self.headers.items()}
            receiver.requests.append(Received(self.path, lower, body))
            self.send_response(receiver.status)
            for name, value in ({"Content-Length": str(len(receiver.answer))} | receiver.headers).items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):  # the sender may have read enough
                if not receiver.slow:
                    self.wfile.write(receiver.answer)
                for one in receiver.answer if receiver.slow else b"":
                    self.wfile.write(bytes([one]))
                    time.sleep(receiver.slow)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def finish_request(self, request: Any, client_address: Any) -> None:
            if tls is None:
                super().finish_request(request, client_address)
                return
            with tls.wrap_socket(request, server_side=True) as encrypted:
                super().finish_request(encrypted, client_address)

        def handle_error(self, *_: Any) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}/hook?from=ledger")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


@dataclass
class MailServer:
    """An SMTP server that keeps what it gets."""

    port: int
    mails: list[tuple[list[str], str]] = field(default_factory=list)  # recipients and content
    logins: list[str] = field(default_factory=list)
    refuses: str = ""  # a recipient that it does not take


@contextlib.contextmanager
def mail_server(tls: ssl.SSLContext | None = None) -> Iterator[MailServer]:
    """Yield a running SMTP server at 127.0.0.1, with STARTTLS where it has a certificate."""

    class Handler(socketserver.StreamRequestHandler):
        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        def finish(self) -> None:
            super().finish()
            self.request.close()

        def handle(self) -> None:
            self.say("220 ready")
            recipients = list[str]()
            while line := self.rfile.readline().decode().rstrip("\r\n"):
                match line.split(" ")[0].upper():
                    case "EHLO":
                        offers = ["STARTTLS"] if tls and not isinstance(self.request, ssl.SSLSocket) else []
                        offers += ["AUTH PLAIN"] if isinstance(self.request, ssl.SSLSocket) else []
                        self.wfile.write("".join(f"250-{one}\r\n" for one in ["here", *offers]).encode())
                        self.say("250 HELP")
                    case "STARTTLS" if tls is not None:
                        self.say("220 go on")
                        self.rfile.close()
                        self.request = tls.wrap_socket(self.request, server_side=True)
                        self.setup()
                    case "AUTH":
                        server.logins.append(line)
                        self.say("235 welcome")
                    case "RCPT":
                        taken = not (server.refuses and server.refuses in line)
                        recipients += [line.partition("<")[2].partition(">")[0]] if taken else []
                        self.say("250 taken" if taken else "550 unknown here")
                    case "DATA":
                        self.say("354 go on")
                        content = b"".join(iter(self.rfile.readline, b".\r\n"))
                        server.mails.append((recipients, content.decode()))
                        self.say("250 taken")
                    case "QUIT":
                        self.say("221 bye")
                        return
                    case _:
                        self.say("250 fine")

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True

        def handle_error(self, *_: Any) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as listening:
        server = MailServer(listening.server_address[1])
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
