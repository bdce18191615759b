"""The image registry, through skopeo: manifests, and layers into a local OCI layout.

Invariant: an error is permanent (image missing, access refused, request impossible) or transient. Only transient
ones are retried.
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
from setup.images.programs import ProgramRunner

# Parts of skopeo's messages, in lower case.
MISSING = ("manifest unknown", "name unknown", "repository name not known", "404 (not found)")
REFUSED = ("unauthorized", "authentication required", "invalid username/password", "denied", "403 (forbidden)")
PERMANENT = (
    "server gave http response to https client",
    "x509:",
    "no space left on device",
    "invalid reference format",
)
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
MAX_WAIT_S = 60.0
COMMAND_TIMEOUT = "2h"  # ends a connection that hangs


class RegistryError(SetupError):
    code = "registry"


class NotInRegistry(RegistryError):
    code = "registry_missing"


class AccessRefused(RegistryError):
    code = "registry_refused"


class PullLimitReached(RegistryError):
    """The registry refuses all pulls, usually for hours; requests for other images would fail too."""

    code = "registry_limit"


class RegistryUnavailable(RegistryError):
    code, transient = "registry_trouble", True


def reference(name: str, mirror: str = "") -> str:
    """Return `HOST/PATH[:TAG]` of an image as docker reads its name; `mirror` (HOST or HOST/PREFIX) replaces the
    host."""
    first, slash, rest = name.partition("/")
    has_host = slash and ("." in first or ":" in first or first == "localhost")
    host, path = (first, rest) if has_host else ("docker.io", name)
    if host == "docker.io" and "/" not in path:
        path = f"library/{path}"
    return f"{mirror.rstrip('/') or host}/{path}"


def classify_error(messages: str, source: str) -> RegistryError:
    """Classify skopeo's messages. The image's own name is ignored, because it may contain any of the keywords."""
    fatal = re.search(r'level=fatal msg="(.*)"', messages, re.DOTALL)
    text = re.sub(r"\\(.)", r"\1", fatal[1]) if fatal else messages
    lowered = text.replace(source, "").lower()

    def contains(parts: tuple[str, ...]) -> bool:
        return any(part in lowered for part in parts)

    if "pull rate limit" in lowered:
        return PullLimitReached(
            f"the registry's pull limit is reached; run this again later, log in, or use a --mirror. Message: {text}"
        )
    if contains(MISSING):
        return NotInRegistry(
            f"the registry has no {source}; correct the name, or name its registry (--mirror). Message: {text}"
        )
    if contains(REFUSED):
        return AccessRefused(
            f"the registry refuses {source}; set APPTAINER_DOCKER_USERNAME and APPTAINER_DOCKER_PASSWORD, or log in"
            " with `docker login` or `apptainer registry login` (some registries also refuse missing images)."
            f" Message: {text}"
        )
    if contains(PERMANENT):
        remedy = "; use --no-https for a registry without TLS" if "http response" in lowered else ""
        return RegistryError(f"{source} cannot be fetched: {text}{remedy}")
    return RegistryUnavailable(f"{source} cannot be fetched now: {text}; run this again later")


@dataclass(frozen=True)
class Registry:
    """`attempts`: for each request, with growing random pauses. `on_retry` gets the message of each error that is
    retried."""

    programs: ProgramRunner
    folder: Path
    mirror: str = ""
    plain_http: bool = False
    attempts: int = 5
    on_retry: Callable[[str], None] = lambda text: None

    def resolve(self, name: str) -> Image:
        """Return the image of that name for this machine's architecture. Raises RegistryError."""
        source = reference(name, self.mirror)
        manifest, digest = self._manifest(source)
        # The digest pins the image; the tag may move.
        repository = source.partition("@")[0]
        repository = repository.rpartition(":")[0] if ":" in repository.rpartition("/")[2] else repository
        if "manifests" in manifest:
            platform_items = {"os": "linux", "architecture": ARCHITECTURE}.items()
            digests = [
                entry["digest"]
                for entry in manifest["manifests"]
                if platform_items <= entry.get("platform", {}).items()
            ]
            if not digests:
                raise NotInRegistry(
                    f"{source} is there, but not for linux/{ARCHITECTURE}; use a machine of its architecture"
                )
            digest = digests[0]
            manifest, _ = self._manifest(f"{repository}@{digest}")
        layers = {layer["digest"]: int(layer["size"]) for layer in manifest.get("layers", [])}
        return Image(name, f"{repository}@{digest}", layers)

    def download(self, image: Image, layout: Path) -> None:
        """Download the image into an OCI layout; stored blobs are kept. Raises RegistryError."""
        tls = ["--src-tls-verify=false"] if self.plain_http else []
        self._skopeo(image.source, "copy", "--quiet", *tls, f"docker://{image.source}", f"oci:{layout}")

    def _manifest(self, source: str) -> tuple[dict[str, Any], str]:
        tls = ["--tls-verify=false"] if self.plain_http else []
        raw = self._skopeo(source, "inspect", "--raw", *tls, f"docker://{source}")
        return json.loads(raw), f"sha256:{hashlib.sha256(raw.encode()).hexdigest()}"

    def _skopeo(self, source: str, *arguments: str) -> str:
        """Run skopeo, with retries. Returns its output. Raises RegistryError."""

        def attempt() -> str:
            result = self.programs.run(["skopeo", "--command-timeout", COMMAND_TIMEOUT, *arguments], self.folder)
            if result.returncode == 0:
                return result.output
            raise classify_error(result.messages, source)

        def report_retry(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            self.on_retry(f"{error} (attempt {state.attempt_number} of {self.attempts})")

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: getattr(error, "transient", False)),
            stop=tenacity.stop_after_attempt(self.attempts),
            wait=tenacity.wait_random_exponential(multiplier=1, max=MAX_WAIT_S),
            before_sleep=report_retry,
            reraise=True,
        )(attempt)


def find_skopeo() -> None:
    """Raises SetupError if skopeo is missing."""
    if not shutil.which("skopeo"):
        raise SetupError(
            "skopeo is not on the PATH; install it with `bash setup/tools.sh` (Debian) or this system's package manager"
        )
