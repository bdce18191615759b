"""The registry, through skopeo: what an image is made of, and its layers into a local OCI layout.

Invariant: a fault is one of three: lasting (the image is not there, access is refused, this cannot work), or transient, and only that is tried again.
"""

import hashlib
import json
import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tenacity

from client.errors import SetupError
from setup.images.plan import Image
from setup.images.programs import Programs

ABSENT = ("manifest unknown", "name unknown", "repository name not known", "404 (not found)")
FORBIDDEN = ("unauthorized", "authentication required", "invalid username/password", "denied", "403 (forbidden)")
LASTING = ("server gave http response to https client", "x509:", "no space left on device", "invalid reference format")
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
LONGEST_WAIT_S = 60.0
COMMAND_TIMEOUT = "2h"  # a connection that hangs is a fault, not a night lost


class RegistryFault(SetupError):
    code = "registry"


class NotInRegistry(RegistryFault):
    code = "registry_missing"


class AccessRefused(RegistryFault):
    code = "registry_refused"


class PullLimitReached(RegistryFault):
    """Hours pass before the registry gives anything again; asking for the other images would only be refused."""

    code = "registry_limit"


class RegistryTrouble(RegistryFault):
    code, transient = "registry_trouble", True


def reference(name: str, mirror: str = "") -> str:
    """`HOST/PATH[:TAG]` of an image as docker reads its name; `mirror` (HOST or HOST/PREFIX) stands in for the host."""
    first, slash, rest = name.partition("/")
    host, path = (
        (first, rest) if slash and ("." in first or ":" in first or first == "localhost") else ("docker.io", name)
    )
    if host == "docker.io" and "/" not in path:
        path = f"library/{path}"
    return f"{mirror.rstrip('/') or host}/{path}"


def fault_of(said: str, source: str) -> RegistryFault:
    """What skopeo's message means. The image's own name does not count: it may hold any word."""
    text = (
        re.sub(r"\\(.)", r"\1", match[1]) if (match := re.search(r'level=fatal msg="(.*)"', said, re.DOTALL)) else said
    )
    lowered = text.replace(source, "").lower()
    if "pull rate limit" in lowered:
        return PullLimitReached(
            f"the registry's limit of pulls is reached; run this again later, log in, or use a --mirror. It said: {text}"
        )
    if any(sign in lowered for sign in ABSENT):
        return NotInRegistry(
            f"the registry has no {source}; is the name right, or is it in another registry (--mirror)? It said: {text}"
        )
    if any(sign in lowered for sign in FORBIDDEN):
        return AccessRefused(
            f"the registry refuses {source}; give APPTAINER_DOCKER_USERNAME and APPTAINER_DOCKER_PASSWORD, or log in with `docker login` or"
            f" `apptainer registry login` (some registries answer so for an image that does not exist). It said: {text}"
        )
    if any(sign in lowered for sign in LASTING):
        return RegistryFault(
            f"{source} cannot be fetched: {text}"
            + ("; for a registry without TLS say --no-https" if "http response" in lowered else "")
        )
    return RegistryTrouble(f"{source} cannot be fetched now: {text}; run this again later")


@dataclass(frozen=True)
class Registry:
    """`attempts` at everything, with pauses that grow and are random; `on_retry` hears of each fault that is tried again."""

    programs: Programs
    folder: Path
    mirror: str = ""
    plain_http: bool = False
    attempts: int = 5
    on_retry: Callable[[str], None] = lambda text: None

    def image(self, name: str) -> Image:
        """What there is under that name for this machine's architecture. Raises RegistryFault."""
        source = reference(name, self.mirror)
        manifest, digest = self._manifest(source)
        # A digest pins what was looked at; the tag may move.
        repository = source.partition("@")[0]
        repository = repository.rpartition(":")[0] if ":" in repository.rpartition("/")[2] else repository
        if "manifests" in manifest:
            wanted = {"os": "linux", "architecture": ARCHITECTURE}
            fitting = [
                entry["digest"]
                for entry in manifest["manifests"]
                if wanted.items() <= entry.get("platform", {}).items()
            ]
            if not fitting:
                raise NotInRegistry(f"{source} is there, but not for linux/{ARCHITECTURE}")
            digest = fitting[0]
            manifest, _ = self._manifest(f"{repository}@{digest}")
        layers = {layer["digest"]: int(layer["size"]) for layer in manifest.get("layers", [])}
        return Image(name, f"{repository}@{digest}", layers)

    def download(self, image: Image, layout: Path) -> None:
        """Into an OCI layout; blobs that are there stay. Raises RegistryFault."""
        tls = ["--src-tls-verify=false"] if self.plain_http else []
        self._skopeo(image.source, "copy", "--quiet", *tls, f"docker://{image.source}", f"oci:{layout}")

    def _manifest(self, source: str) -> tuple[dict[str, Any], str]:
        tls = ["--tls-verify=false"] if self.plain_http else []
        raw = self._skopeo(source, "inspect", "--raw", *tls, f"docker://{source}")
        return json.loads(raw), f"sha256:{hashlib.sha256(raw.encode()).hexdigest()}"

    def _skopeo(self, source: str, *arguments: str) -> str:
        def attempt() -> str:
            ran = self.programs.run(["skopeo", "--command-timeout", COMMAND_TIMEOUT, *arguments], self.folder)
            if ran.returncode == 0:
                return ran.output
            raise fault_of(ran.said, source)

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda fault: getattr(fault, "transient", False)),
            stop=tenacity.stop_after_attempt(self.attempts),
            wait=tenacity.wait_random_exponential(multiplier=1, max=LONGEST_WAIT_S),
            before_sleep=lambda state: self.on_retry(
                f"{state.outcome.exception()} (attempt {state.attempt_number} of {self.attempts})"
            ),
            reraise=True,
        )(attempt)


def find_skopeo() -> None:
    """Raises SetupError with the remedy."""
    if not shutil.which("skopeo"):
        raise SetupError(
            "skopeo is not on the PATH; install it with `bash setup/tools.sh` (Debian) or this system's package manager"
        )
