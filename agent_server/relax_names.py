"""Names that Relax's agent server has for settings of ours, so that its users' scripts start ours.

Invariant: a setting has one value. A name of Relax beside ours is accepted where both say the same.
"""

from client.errors import ConfigError

RELAX_NAMES = {  # without the prefix -> our setting
    "reward_concurrency": "gradings",  # 0: no limit
    "record_ttl_seconds": "record_retention_s",
    "omp_num_threads": "sandbox_threads",
}
UNLIMITED = "1000000"


def take_relax_names(values: dict[str, str], prefix: str) -> dict[str, str]:
    """Replace Relax's names in `values` by ours. Returns the variables that were set, by setting.

    Raises ConfigError.
    """
    variables = {}
    for name, field in RELAX_NAMES.items():
        if not (value := values.pop(name, "")):
            continue
        variables[field] = variable = f"{prefix}{name.upper()}"
        if name == "reward_concurrency" and value == "0":
            value = UNLIMITED
        if values.setdefault(field, value) != value:
            raise ConfigError(
                f"{variable}={value} and {prefix}{field.upper()}={values[field]} are one setting; set one of them",
                field=field,
            )
    return variables
