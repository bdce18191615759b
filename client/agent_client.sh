#!/bin/sh
# The process that a trainer launches for each session: becomes agent_client.py under the first usable Python.
# Invariant: stays one process. The system's python3 comes before the one on the PATH, which may be a slow shim.
for python in ${AGENT_CLIENT_PYTHON:-} /usr/bin/python3 python3; do
    command -v "$python" >/dev/null && exec "$python" -I -S "${0%.sh}.py"
done
message="python3 is neither in /usr/bin nor on the PATH; install it or set AGENT_CLIENT_PYTHON"
if [ -n "${RELAX_SESSION_IO_DIR:-}" ]; then
    error="$RELAX_SESSION_IO_DIR/error.json"
    printf '{"boundary": "config", "code": "setup_incomplete", "message": "%s"}' "$message" >"$error.part" &&
        mv "$error.part" "$error"
fi
echo "agent_client: $message" >&2
exit 1
