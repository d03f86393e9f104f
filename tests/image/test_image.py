"""The image's steps without an engine: the Dockerfile's own instructions in a clean root, then its own command there.

The root is a minimal Debian of the base image's release, whose Python stands in for that of the base image. The
command runs as the image's user on a read-only file system in a network of its own, as compose.yaml has it.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import pytest

from tests.api.calls import STEWARD
from tests.processes import ROOT

_TOOLS = ("debootstrap", "unshare", "nsenter", "ip")
_MISSING = [tool for tool in _TOOLS if shutil.which(tool) is None]

pytestmark = [
    pytest.mark.image,
    pytest.mark.skipif(os.geteuid() != 0, reason="a root of its own is made by root only"),
    pytest.mark.skipif(bool(_MISSING), reason=f"not installed: {', '.join(_MISSING)}"),
]


@dataclass
class Image:
    """The file system that the instructions have made of a root."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    user: str = "0:0"
    volumes: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def inside(self, command: str, user: str | None = None) -> list[str]:
        """A shell command there, as words."""
        line = f"cd {shlex.quote(self.directory)} && {command}"
        return ["chroot", f"--userspec={user or self.user}", str(self.root), "/bin/sh", "-c", line]

    def variables(self, **more: str) -> dict[str, str]:
        """The environment there: the image's own and nothing of this one's."""
        return {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root"} | self.environment | more


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    home = Path(tempfile.mkdtemp(prefix="image-", dir="/var/tmp"))  # too large for memory
    built = Image(home / "root")
    instructions = _instructions((ROOT / "Dockerfile").read_text())
    base = instructions[0]
    release = re.fullmatch(r"FROM python:3\.11\.[0-9]+-slim-(\w+)@sha256:[0-9a-f]{64}", base)
    assert release is not None, base
    places = _python_base(built.root, release[1])
    try:
        for instruction in instructions[1:]:
            _follow(built, instruction)
        yield built
    finally:
        for place in [*places, built.root / "proc"]:
            subprocess.run(["umount", place], check=True)
        shutil.rmtree(home)


def _instructions(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [" ".join(line.split()) for line in joined.splitlines() if line.strip()]


def _python_base(root: Path, release: str) -> list[Path]:
    """A minimal Debian with Python and pip under the names that the base image has; the places mounted into it."""
    mirror = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE) $(CODENAME)"], capture_output=True, text=True, check=True
    ).stdout.split()
    site = next(site for site, name in zip(mirror[::2], mirror[1::2], strict=True) if name == release)
    include = "--include=python3.11,python3-pip,ca-certificates"
    _run(["debootstrap", "--variant=minbase", include, release, str(root), site])
    for name, program in (("python", "python3.11"), ("pip", "pip3")):
        (root / "usr/local/bin" / name).symlink_to(f"/usr/bin/{program}")
    next((root / "usr/lib/python3.11").glob("EXTERNALLY-MANAGED")).unlink()  # the base image's pip may install
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    return _package_sources(root)


def _package_sources(root: Path) -> list[Path]:
    """Let pip there find what it finds here: its configuration, certificates, and folders of packages."""
    for path in (Path("/etc/pip.conf"), Path("/etc/resolv.conf"), Path("/etc/ssl/certs/ca-certificates.crt")):
        if path.exists():
            shutil.copyfile(path, root / path.relative_to("/"))
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    folders = {Path(found) for found in re.findall(r"(?:file://|['\s])(/[^\s']+)", configured)}
    mounted = []
    for folder in sorted(folder for folder in folders if folder.is_dir()):
        source = folder.parent if folder.name == "simple" else folder
        place = root / source.relative_to("/")
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", "--read-only", source, place], check=True)
        mounted.append(place)
    return mounted


def _follow(image: Image, instruction: str) -> None:
    name, _, rest = instruction.partition(" ")
    match name:
        case "ENV":
            image.environment |= dict(word.split("=", 1) for word in shlex.split(rest))
        case "WORKDIR":
            image.directory = rest
            (image.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        case "ARG":
            image.arguments |= dict([rest.split("=", 1)])
        case "COPY":
            source, target = Template(rest).substitute(image.arguments).split()
            _copy(ROOT / source, image.root / image.directory.lstrip("/") / target)
        case "RUN":
            pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
            _run(image.inside(rest), image.variables(**pip))
        case "USER":
            image.user = rest
        case "VOLUME":
            image.volumes = json.loads(rest)
        case "CMD":
            image.command = json.loads(rest)
        case "HEALTHCHECK":
            image.health = json.loads(rest[rest.index("CMD ") + 4 :])
        case "EXPOSE":
            pass
        case _:
            pytest.fail(f"an instruction that this test does not follow: {instruction}")


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target / source.name if target.is_dir() else target)


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture
def serving(image: Image, tmp_path: Path) -> Iterator[list[str]]:
    """The image's command running; gives what enters its network. Volumes are empty and writable, /tmp is in memory."""
    root, owner = image.root, image.user.split(":", 1)[0]
    mounts = [f"mount --bind {root} {root}", f"mount -t tmpfs tmpfs {root}/tmp"]
    for number, volume in enumerate(image.volumes):
        made = tmp_path / str(number)
        made.mkdir(mode=0o700)
        shutil.chown(made, int(owner), int(image.user.split(":", 1)[1]))
        mounts.append(f"mount --bind {made} {root}{volume}")
    start = shlex.join(image.inside(shlex.join(["exec", *image.command])))
    steps = [*mounts, f"mount -o remount,bind,ro {root}", "ip link set lo up", f"exec {start}"]
    with subprocess.Popen(
        ["unshare", "--net", "--mount", "sh", "-ec", "\n".join(steps)],
        env=image.variables(SERVICE_BOOTSTRAP_KEY=STEWARD),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        enter = ["nsenter", "--net", "--mount", f"--target={process.pid}"]
        try:
            deadline = time.monotonic() + 120
            healthy = [*enter, *image.inside(shlex.join(image.health))]
            while subprocess.run(healthy, env=image.variables(), capture_output=True, check=False).returncode:
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < deadline, "the image's own health check does not pass"
                time.sleep(0.5)
            yield enter
        finally:
            process.terminate()
            assert process.wait(60) == 0, "SIGTERM ends it in good order"


def test_the_image_serves(image: Image, serving: list[str]) -> None:
    """It answers a draw, from a file system that it cannot write to, as its own user."""
    program = f"""
import json, os
from urllib.request import Request, urlopen
assert os.getuid() == 10001
for path in ("/app", "/app/service", "/usr/local", "/"):
    assert not os.access(path, os.W_OK), path
def post(path, body):
    request = Request("http://127.0.0.1:8000" + path, json.dumps(body).encode(), method="POST")
    request.add_header("Authorization", "Bearer {STEWARD}")
    request.add_header("Content-Type", "application/json")
    return json.load(urlopen(request))
budget = {{"definition": "pure", "epsilon": 1}}
post("/v1/accounts", {{"name": "a", "unit": "person", "neighbouring": "add_remove", "budget": budget}})
mechanism = {{"type": "geometric", "epsilon": "0.5"}}
print(len(post("/v1/accounts/a/draws", {{"name": "n", "mechanism": mechanism, "counts": [1, 2, 3]}})["noisy"]))
"""
    said = _run([*serving, *image.inside(shlex.join(["python", "-c", program]))], image.variables())
    assert said == "3\n"


def test_the_locked_packages_are_all_that_is_installed(image: Image) -> None:
    """Every one at the lock's version, and none that the lock does not name but pip's own."""
    listed = json.loads(_run(image.inside("pip list --format json"), image.variables()))
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    found = {entry["name"].lower().replace("_", "-").replace(".", "-"): entry["version"] for entry in listed}
    assert {name: version for name, version in found.items() if name not in {"pip", "setuptools", "wheel"}}.items() <= (
        locked.items()
    )
