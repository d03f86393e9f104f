"""nginx and Caddy with the configurations of ``deploy/`` as processes, before replicas of the service."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from tests.faults.processes import Replica
from tests.processes import ROOT

_SERVICE = re.compile(r"service-([123]):8000")


@dataclass
class OtherProxy(Replica):
    """A proxy of ``deploy/``, in the place of a single server; it passes requests on to three."""

    behind: list[Replica] = field(default_factory=list)
    certificate: tuple[Path, Path] | None = None  # with its key, for TLS

    @property
    def address(self) -> str:
        return f"http{'s' if self.certificate else ''}://127.0.0.1:{self.port}"

    def ready(self) -> int:
        """Return the status of its probe, whatever its certificate; 0 where nobody answers."""
        with suppress(httpx2.TransportError):
            return httpx2.get(f"{self.address}/readyz", timeout=60, trust_env=False, verify=False).status_code
        return 0

    def configuration(self) -> Path:
        """Write the configuration as an operator adapts it: where it listens, and its replicas."""
        raise NotImplementedError

    def check(self) -> subprocess.CompletedProcess[str]:
        """Run the program's own check of the configuration."""
        return subprocess.run(self.checked_by(), capture_output=True, text=True, check=False)

    def checked_by(self) -> list[str]:
        """Return the command that checks the configuration."""
        raise NotImplementedError

    def started_by(self) -> list[str]:
        """Return the command that starts it in the foreground."""
        raise NotImplementedError

    def begin(self, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
        """Start the program, with nothing of this environment."""
        variables = {"PATH": "/usr/sbin:/usr/bin", "HOME": str(self.home)}
        return subprocess.Popen(self.started_by(), cwd=self.home, env=variables, stdout=stdout, stderr=stderr)

    def kill(self) -> None:
        """End it and its workers, which a killed master would leave behind."""
        self.stop()

    def log_lines(self) -> list[dict[str, object]]:
        """Return its lines of JSON."""
        return [json.loads(line) for line in self.said if line.startswith("{")]

    def processes(self) -> list[int]:
        """Return its processes: the first one and those that this one started."""
        assert self.pid is not None
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii")
        return [self.pid, *map(int, children.split())]

    def files(self) -> list[str]:
        """Return the files that it holds open, also deleted ones; neither sockets nor devices."""
        links = [link for number in self.processes() for link in Path(f"/proc/{number}/fd").iterdir()]
        names = (str(link.readlink()) for link in links)
        return sorted(name for name in names if name.startswith("/") and not name.startswith(("/dev/null", "/dev/pts")))

    def _adapted(self, name: str, changes: dict[str, str]) -> Path:
        text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
        text = _SERVICE.sub(lambda found: f"127.0.0.1:{self.behind[int(found[1]) - 1].port}", text)
        for before, after in changes.items():
            assert text.count(before) == 1, before
            text = text.replace(before, after)
        path = self.home / name
        path.write_text(text, encoding="utf-8")
        return path


@dataclass
class Nginx(OtherProxy):
    """nginx with ``deploy/nginx.conf``; ``changes`` are made to it."""

    changes: dict[str, str] = field(default_factory=dict)

    def configuration(self) -> Path:
        listen = f"listen 127.0.0.1:{self.port}"
        if self.certificate is not None:
            chain, key = self.certificate
            listen += f" ssl; ssl_certificate {chain}; ssl_certificate_key {key}"
        own = {f"/tmp/nginx{end}": f"{self.home}/nginx{end}" for end in (".pid", "-body", "-proxy", "-fastcgi")}
        own |= {f"/tmp/nginx{end}": f"{self.home}/nginx{end}" for end in ("-uwsgi", "-scgi")}
        return self._adapted("nginx.conf", {"listen 8000": listen, **own, **self.changes})

    def checked_by(self) -> list[str]:
        return ["nginx", "-t", "-e", "stderr", "-c", str(self.configuration())]

    def started_by(self) -> list[str]:
        user = "user root;" if os.geteuid() == 0 else ""  # its workers must reach the test's directory
        return ["nginx", "-e", "stderr", "-g", f"daemon off; {user}", "-c", str(self.configuration())]


@dataclass
class Caddy(OtherProxy):
    """Caddy with ``deploy/Caddyfile``."""

    def configuration(self) -> Path:
        site = f":{self.port} {{\n\tbind 127.0.0.1"
        if self.certificate is not None:
            chain, key = self.certificate
            site = f"https://127.0.0.1:{self.port} {{\n\ttls {chain} {key}"
        # Without the certificates' own site at port 80.
        own = {":8000 {": site, "\tadmin off": "\tadmin off\n\tauto_https disable_redirects"}
        return self._adapted("Caddyfile", own)

    def checked_by(self) -> list[str]:
        return ["caddy", "validate", "--adapter", "caddyfile", "--config", str(self.configuration())]

    def started_by(self) -> list[str]:
        return ["caddy", "run", "--adapter", "caddyfile", "--config", str(self.configuration())]


KINDS: dict[str, Callable[..., OtherProxy]] = {"nginx": Nginx, "caddy": Caddy}
