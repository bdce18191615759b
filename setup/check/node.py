"""The node under check: its settings, task rows and images, each with the error that keeps it from loading."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from agent_server.__main__ import check_images
from agent_server.config import Settings, variable
from agent_server.sandboxes import apptainer
from agent_server.tasks.catalog import open_catalog
from client.errors import ConfigError, StackError

PATHS = ("data_path", "sif_dir")
Part = TypeVar("Part")


class Node:
    """`settings`, `catalog` and `images` are None where they cannot be loaded; `errors` has the reasons by the
    table's line name."""

    def __init__(self, environment: dict[str, str], demo: Path):
        self.demo = demo
        self.errors: dict[str, StackError] = {}
        self.settings = self._read_settings(environment)
        settings = self.settings
        self.catalog = self._load("rows", lambda: open_catalog(settings)) if settings else None
        catalog = self.catalog
        self.images = (
            self._load("images", lambda: check_images(settings.sif_dir, catalog.image_names()))
            if settings and catalog
            else None
        )
        demo_paths = (str(demo / "tasks"), str(demo / "images"))
        uses_demo = (environment.get("R2E_DATA_PATH"), environment.get("R2E_SIF_DIR")) == demo_paths
        self.is_unbuilt_demo = uses_demo and bool(self.errors) and "settings" not in self.errors

    def _read_settings(self, environment: dict[str, str]) -> Settings | None:
        """Read the settings. A missing path is the error of its own line; the other settings are read all the same."""
        for _ in range(1 + len(PATHS)):
            try:
                return Settings.from_environment(environment)
            except ConfigError as error:
                if error.field not in PATHS:
                    self.errors["settings"] = error
                    return None
                self.errors["rows" if error.field == "data_path" else "images"] = error
                environment = environment | {variable(error.field): "/"}
        return None

    def _load(self, name: str, load: Callable[[], Part]) -> Part | None:
        if name in self.errors:
            return None
        try:
            return load()
        except StackError as error:
            self.errors[name] = error
        return None

    def any_image(self) -> Path | None:
        """Return a readable image: one of the rows, else any in R2E_SIF_DIR, else the demo's."""
        if not self.settings:
            return None
        folder = self.settings.sif_dir
        names = sorted(self.catalog.image_names()) if self.catalog else []
        for path in [
            *(apptainer.image_path(folder, name) for name in names),
            *sorted(folder.glob("*.sif")),
            *sorted((self.demo / "images").glob("*.sif")),
        ]:
            try:
                apptainer.check_image(path)
                return path
            except (StackError, OSError):
                continue
        return None
