#!/bin/sh
# One rollout session, as the trainer's process: asks an agent server to run it, waits, writes the output JSON.
# Invariant: the output JSON is whole or absent, and a signal always ends the remote session.
#
# Environment: RELAX_INPUT_JSON, RELAX_OUTPUT_JSON, RELAX_SESSION_IO_DIR (paths), RELAX_BASE_URL, RELAX_SESSION_ID,
#   RELAX_GROUP_ID, RELAX_ROLLOUT_MODE (train|eval), AGENT_SERVER_URL; optional AGENT_SERVER_TOKEN,
#   AGENT_CLIENT_OUTAGE_S (default 120), AGENT_CLIENT_TRACE_DIR (keeps the last answer of sessions that failed).
# Exit codes: 0 completed, 1 failed, 143 cancelled, 75 the server could not be reached within the outage limit.
set -u

say() { printf 'agent_client: %s\n' "$*" >&2; }
for name in RELAX_OUTPUT_JSON RELAX_SESSION_IO_DIR RELAX_BASE_URL RELAX_SESSION_ID RELAX_GROUP_ID RELAX_ROLLOUT_MODE AGENT_SERVER_URL; do
    eval "value=\${$name:-}"
    [ -n "$value" ] || { say "$name must be set; the trainer sets it for every session"; exit 1; }
done
server=${AGENT_SERVER_URL%/}
outage_s=${AGENT_CLIENT_OUTAGE_S:-120}
wait_s=30
io=$RELAX_SESSION_IO_DIR
answer=$io/answer.json
session='' child='' code=000 seconds=0

await() { child=$!; wait "$child"; child=''; }
pause() { sleep "${1:-1}" & await; }
retry_after() { sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9][0-9]*\).*/\1/p' "$io/headers" 2>/dev/null; }

# call METHOD PATH TIME_LIMIT_S [CURL_OPTION...]: sets $code ("000" without an answer); the body lies in $answer.
# curl runs in the background because sh defers traps while a foreground child runs; its secrets go in by stdin.
call() {
    method=$1 path=$2 limit_s=$3
    shift 3
    curl -sS -K - --connect-timeout 5 --max-time "$limit_s" -X "$method" -o "$answer" -D "$io/headers" -w '%{http_code} %{time_total}\n' "$@" \
        "$server$path" >"$io/code" 2>"$io/curl.log" <<CONFIG &
${AGENT_SERVER_TOKEN:+header = "Authorization: Bearer $AGENT_SERVER_TOKEN"}
CONFIG
    await
    read -r code seconds <"$io/code" || code=000
}

post() { call POST /sessions "$1" -H 'Content-Type: application/json' --data-binary "@$io/request.json"; }

give_up() { # EXIT_CODE MESSAGE
    say "$2"
    if [ -n "${AGENT_CLIENT_TRACE_DIR:-}" ] && mkdir -p "$AGENT_CLIENT_TRACE_DIR"; then
        { printf '%s: %s\n' "$(date -u +%FT%TZ)" "$2"; cat "$answer"; } >"$AGENT_CLIENT_TRACE_DIR/$(printf %s "$RELAX_SESSION_ID" | tr -c 'A-Za-z0-9._-' _).log" 2>/dev/null
    fi
    exit "$1"
}

discard() {
    trap '' TERM INT
    [ -z "$child" ] || { kill "$child" 2>/dev/null; wait "$child" 2>/dev/null; }
    # Without an id the request may or may not have arrived: asking again answers the same session.
    if [ -z "$session" ] && [ -s "$io/request.json" ]; then
        post 2 && session=$(jq -r '.session_id // empty' "$answer" 2>/dev/null)
    fi
    [ -z "$session" ] || call POST "/sessions/$session/cancel" 3
    say "cancelled"
    exit 143
}
trap discard TERM INT

# outage: called after each call without a usable answer; ends the process when the limit is reached.
down_since=''
outage() {
    now=$(date +%s)
    [ -n "$down_since" ] || down_since=$now
    if [ $((now - down_since)) -ge "$outage_s" ]; then
        give_up 75 "$server gave no usable answer for $outage_s s (last code $code: $(head -c 200 "$io/curl.log")); is the agent server up?"
    fi
    pause "$(retry_after)"
}

input=${RELAX_INPUT_JSON:-}
[ -n "$input" ] && [ -s "$input" ] || { input=$io/empty.json; printf '{}' >"$input"; }
jq '{session_id: env.RELAX_SESSION_ID, group_id: env.RELAX_GROUP_ID, mode: env.RELAX_ROLLOUT_MODE, base_url: env.RELAX_BASE_URL,
     api_key: env.RELAX_SESSION_ID, metadata: (.metadata // {})} + (if .metadata.task_id? then {task_id: .metadata.task_id} else {} end)' \
    "$input" >"$io/request.json" || give_up 1 "RELAX_INPUT_JSON $input is not a JSON object"

while :; do
    if [ -z "$session" ]; then post 30; else call GET "/sessions/$session?wait=$wait_s" $((wait_s + 15)); fi
    case $code in
    2??) down_since='' ;;
    429) pause "$(retry_after)"; continue ;;
    4??) give_up 1 "$server refused (HTTP $code): $(head -c 500 "$answer")" ;;
    *) outage; continue ;;
    esac
    if [ -z "$session" ]; then
        session=$(jq -er .session_id "$answer") || give_up 1 "$server answered POST /sessions without a session_id"
        continue
    fi
    # One jq reads the state and, when completed, writes the output beside its place; mv makes it appear whole.
    status=$(jq -r .status "$answer")
    case $status in
    completed)
        jq '{reward, metadata: ({exit_status: .agent_exit_status} + del(.reward, .agent_exit_status, .client_session_id, .error))}' \
            "$answer" >"$RELAX_OUTPUT_JSON.part" && mv "$RELAX_OUTPUT_JSON.part" "$RELAX_OUTPUT_JSON" ||
            give_up 1 "cannot write $RELAX_OUTPUT_JSON"
        exit 0
        ;;
    failed) give_up 1 "session $session failed: $(jq -c .error "$answer")" ;;
    cancelled) give_up 143 "session $session was cancelled" ;;
    queued | running | grading) case $seconds in 0.*) pause 1 ;; esac ;; # answered at once: this server knows no ?wait
    *) give_up 1 "session $session is in a state this client does not know: $status" ;;
    esac
done
