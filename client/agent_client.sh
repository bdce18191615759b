#!/bin/sh
# The process a trainer launches for a session: becomes agent_client.py, which says what it reads and does.
# Invariant: stays one process. The system's own python3 comes first: the first on the PATH may be a shim that costs 100 ms a start.
for python in ${AGENT_CLIENT_PYTHON:-} /usr/bin/python3 python3; do
    command -v "$python" >/dev/null && exec "$python" -I -S "${0%.sh}.py"
done
echo "agent_client: there is no python3, neither in /usr/bin nor on the PATH; install it or set AGENT_CLIENT_PYTHON" >&2
exit 1
