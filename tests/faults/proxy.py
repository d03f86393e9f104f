"""The proxy of ``deploy/haproxy.cfg`` as a process, before replicas of the service."""

import json
import subprocess
from dataclasses import dataclass, field

import httpx2

from tests.faults.processes import Replica
from tests.processes import ROOT
from tests.waiting import until


@dataclass
class Proxy(Replica):
    """The proxy with its own configuration, in the place of a single server; it passes requests on to three."""

    behind: list[Replica] = field(default_factory=list)

    def begin(self, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
        """With its output where this is read, and not in the background; it is told where it listens, and for whom."""
        addresses = {f"SERVICE_{number}": f"127.0.0.1:{one.port}" for number, one in enumerate(self.behind, 1)}
        variables = {"PROXY_BIND": f"127.0.0.1:{self.port}", "PATH": "/usr/sbin:/usr/bin", **addresses}
        command = ["haproxy", "-db", "-f", str(ROOT / "deploy" / "haproxy.cfg")]
        return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=stdout, stderr=stderr)

    def start(self) -> None:
        """Start it, and wait until all three take part."""
        super().start()
        until(lambda: self._servers_asked() == {"service-1", "service-2", "service-3"}, "all take part")

    def log_lines(self) -> list[dict[str, object]]:
        """Return the lines that it logged of requests."""
        return [json.loads(line) for line in self.said if line.startswith("{")]

    def _servers_asked(self) -> set[object]:
        for _ in range(6):
            assert httpx2.get(f"{self.address}/healthz", trust_env=False).status_code == 200
        return {line["server"] for line in self.log_lines()}
