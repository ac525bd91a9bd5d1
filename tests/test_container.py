"""The image of the team's server: built and run where Docker is, else its steps as they stand."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from documentation import ROOT

PATIENCE_S = 120.0
# What only an image has: packages of the system, and a user.
OF_THE_SYSTEM = ("apt-get", "useradd")


def steps() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions, each with what it says."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    parts = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(name, said) for name, _, said in parts]


def said(name: str) -> Any:
    """Return the last such instruction's words."""
    text = [said for one, said in steps() if one == name][-1]
    return json.loads(text[text.index("[") :])


def until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.5)


def has_docker() -> bool:
    words = ["docker", "info"]
    return (
        shutil.which("docker") is not None
        and not subprocess.run(words, capture_output=True, check=False, timeout=20).returncode
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the steps that use pip make of a clean copy; most that they would fetch is lent."""
    source, place = (tmp_path_factory.mktemp(name) for name in ("source", "image"))
    if subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("no git checkout: nothing says which files are copied")
    listed = "git ls-files -z --cached --others --exclude-standard"
    copied = f"{listed} | tar -c --null -T - | tar -x -C {source}"
    subprocess.run(copied, cwd=ROOT, shell=True, check=True)
    venv.create(place, with_pip=True)
    site = next(place.glob("lib/python*/site-packages"))
    for old in (*site.glob("setuptools*"), *site.glob("pkg_resources")):  # Python's own, of 2022
        shutil.rmtree(old)
    lent = [path for path in sys.path if path.endswith("site-packages")]
    (site / "lent.pth").write_text("\n".join(lent) + "\n")
    environ = {
        **os.environ, "PATH": f"{place / 'bin'}:/usr/bin:/bin",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's own way to say that it is off
    }  # fmt: skip
    for name, line in steps():
        if name == "RUN" and not any(word in line for word in OF_THE_SYSTEM):
            done = subprocess.run(
                ["sh", "-c", line], cwd=source, env=environ, capture_output=True, text=True,
                check=False, timeout=400,
            )  # fmt: skip
            assert not done.returncode, f"{line}\n{done.stdout}{done.stderr}"
    return place


@pytest.mark.frameworks
@pytest.mark.skipif(has_docker(), reason="the image itself is built and run")
def test_its_steps_give_a_server_that_answers_and_ends(environment: Path, tmp_path: Path) -> None:
    pytest.importorskip("s3fs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [word.replace("8123", port) for word in (*said("ENTRYPOINT"), *said("CMD"))]
    asks = [word.replace("8123", port) for word in said("HEALTHCHECK")]
    environ = {
        **os.environ, "PATH": f"{environment / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "data"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    environ.pop("ADVISOR_RUNS", None)
    server = subprocess.Popen(words, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL)
    try:
        until(
            lambda: not subprocess.run(asks, env=environ, capture_output=True, check=False)
            .returncode,
            "it never becomes healthy",
        )  # fmt: skip
        address = f"http://127.0.0.1:{port}/api/recommend?cloud=lambda"
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as reply:
            assert json.load(reply)["picks"]["best_value"]
        server.terminate()
        assert server.wait(20) == 128 + signal.SIGTERM
    finally:
        server.kill()
        server.wait()


@pytest.mark.frameworks
@pytest.mark.skipif(not has_docker(), reason="no Docker here")
def test_the_image_answers_and_ends() -> None:
    name = f"advisor-{secrets.token_hex(4)}"

    def docker(*words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["docker", *words], cwd=ROOT, check=check, capture_output=True)

    docker("build", "--tag", name, ".")
    try:
        docker("run", "--detach", "--name", name, name)
        until(lambda: not docker("exec", name, *said("HEALTHCHECK"), check=False).returncode,
              "it never becomes healthy")  # fmt: skip
        docker("stop", name)
        code = docker("inspect", "--format", "{{.State.ExitCode}}", name).stdout
        assert int(code) == 128 + signal.SIGTERM
    finally:
        docker("rm", "--force", name, check=False)
        docker("rmi", "--force", name, check=False)


def test_the_image_builds_with_the_torch_that_is_tried() -> None:
    """As the Makefile installs it: one version, said in both."""
    makefile, lines = (ROOT / "Makefile").read_text(), [line for _, line in steps()]
    pinned = re.search(r"TORCH \?= (torch==\S+)", makefile)
    assert pinned is not None
    assert any(f" {pinned[1]} " in line for line in lines)


def test_only_what_shares_the_servers_network_reaches_it() -> None:
    """The server signs nobody in: no port of its own is published, only the proxy's."""
    services = yaml.safe_load((ROOT / "examples/proxy/compose.yaml").read_text())["services"]
    port = said("ENTRYPOINT")[-1]
    for service in services.values():
        assert not any(port in one for one in service.get("ports", []))
    assert {services[one]["network_mode"] for one in ("caddy", "sign-in")} == {"service:advisor"}
    assert f"reverse_proxy 127.0.0.1:{port}" in (ROOT / "examples/proxy/Caddyfile").read_text()
