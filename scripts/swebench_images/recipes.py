"""How the repository and the environment of a SWE-bench row are made from packages of PyPI.

Invariant: packages are pinned, and installed without others: what is listed is what the environment holds.
"""

from dataclasses import dataclass, field

PYTEST = (
    "pytest==7.4.4",
    "pluggy==1.5.0",
    "iniconfig==2.0.0",
    "packaging==24.1",
    "tomli==2.0.1",
    "exceptiongroup==1.2.2",
)
BUILD = ("pip==24.2", "setuptools==68.2.2", "wheel==0.44.0")

SYMPY_TEST = """#!/usr/bin/env python
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import sympy

files = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
cached = "-C" not in sys.argv
os.environ["SYMPY_USE_CACHE"] = "yes" if cached else "no"
sys.exit(not sympy.test(*files, verbose="--verbose" in sys.argv, sort=True))
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One row. `fixed`: the release whose sdist holds the row's fix. `packages`: of its environment, for Python 3.9.

    `old_tests`: the release with the tests as they were before the fix, and the paths to take from its sdist; None
    where the row's test patch can be taken back in `fixed`. `files`: that the sdist lacks, by path, executable.
    `edits`: bash in the repository, from SWE-bench's specification.
    """

    fixed: str
    packages: tuple[str, ...]
    old_tests: tuple[str, tuple[str, ...]] | None = None
    files: dict[str, str] = field(default_factory=dict)
    edits: str = ""


RECIPES = {
    "sympy__sympy-20916": Recipe(
        fixed="sympy==1.8", packages=(*BUILD, "mpmath==1.3.0", "flake8==3.7.9"), files={"bin/test": SYMPY_TEST}
    ),
    "pylint-dev__pylint-4551": Recipe(
        fixed="pylint==2.9.0",
        packages=(
            *BUILD, *PYTEST, "astroid==2.6.6", "isort==5.13.2", "mccabe==0.6.1", "toml==0.10.2",
            "lazy-object-proxy==1.10.0", "wrapt==1.14.1", "py==1.11.0", "pytest-benchmark==4.0.0", "py-cpuinfo==9.0.0",
        ),
        old_tests=("pylint==2.8.3", ("tests",)),
    ),
    "sphinx-doc__sphinx-8595": Recipe(
        fixed="Sphinx==3.5.0",
        packages=(
            *BUILD, *PYTEST, "tox==4.16.0", "tox-current-env==0.0.11", "cachetools==5.3.3", "chardet==5.2.0",
            "colorama==0.4.6", "filelock==3.15.4", "platformdirs==4.2.2", "pyproject-api==1.7.1", "virtualenv==20.26.3",
            "distlib==0.3.8", "Jinja2==2.11.3", "MarkupSafe==1.1.1", "docutils==0.16", "Pygments==2.18.0",
            "snowballstemmer==2.2.0", "babel==2.15.0", "alabaster==0.7.11", "imagesize==1.4.1", "requests==2.32.3",
            "charset-normalizer==3.3.2", "idna==3.7", "urllib3==2.2.2", "certifi==2024.7.4", "html5lib==1.1",
            "six==1.16.0", "webencodings==0.5.1", "sphinxcontrib-applehelp==1.0.4", "sphinxcontrib-devhelp==1.0.2",
            "sphinxcontrib-htmlhelp==2.0.1", "sphinxcontrib-jsmath==1.0.1", "sphinxcontrib-qthelp==1.0.3",
            "sphinxcontrib-serializinghtml==1.1.5",
        ),
        old_tests=("Sphinx==3.4.3", ("tests/test_ext_autodoc_automodule.py",)),
        # The release has a later change too, with which the members of the row's test cannot be `True`.
        edits=(
            "sed -i 's/pytest/pytest -rA/' tox.ini; sed -i"
            " 's/elif options.get(name) is not None:/elif isinstance(options.get(name), str):/'"
            " sphinx/ext/autodoc/directive.py"
        ),
    ),
}  # fmt: skip
