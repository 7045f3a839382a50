#!/usr/bin/env bash
# Ask headrace one question with kcat and jq: print the tokens as they come, stop at the result.
#
#   apt-get install kcat jq
#   KAFKA_BROKERS=localhost:9092 ./ask.sh "Why is the sky blue?" [SESSION]
set -euo pipefail

brokers=${KAFKA_BROKERS:-localhost:9092}
namespace=${NAMESPACE:-headrace}
model=${MODEL:-smollm2-135m-instruct}
text=$1 session=${2:-}
id=$(cat /proc/sys/kernel/random/uuid)

# `murmur2_random` is Kafka's default partitioner; kcat's own default would choose another partition.
jq -cn --arg id "$id" --arg model "$model" --arg text "$text" --arg session "$session" \
  '{$id, $model, messages: [{role: "user", content: $text}]} + if $session == "" then {} else {$session} end' |
  kcat -P -b "$brokers" -t "$namespace.requests" -k "${session:-$id}" -X partitioner=murmur2_random -X acks=all

# -J wraps each record with its partition and offset. All partitions are read, since kcat does not tell which one it
# wrote to, each from 1000 records before its end: the newest takeover is seen, and what came meanwhile is not missed.
# (Not `-o s@TIME`: where no record is that young, kcat begins at an end that it looks up later.)
consume() {
  exec kcat -C -u -q -J -b "$brokers" -t "$1" -o -1000 -X isolation.level=read_committed
}

# The newest takeover of each source, the next index, and what is to be printed now.
stream='
  foreach inputs as $read ({epochs: {}, next: 0, piece: ""};
    ($read.payload | fromjson) as $record | .piece = "" |
    if $record.schema == "takeover/1" then .epochs[$record.source] = $read.offset
    elif $record.schema == "delta/1" and $record.request_id == $id and ($record.tenant // "default") == "default"
      and $record.epoch >= (.epochs[$record.source] // 0) and $record.index == .next
    then $record.choices[0] as $choice | .piece = ($choice.delta.content // "")
      | .next = if $choice.finish_reason then -1 else .next + ($record.token_ids // [] | length) end
    else . end;
    .piece)'
result='
  .payload | fromjson
  | select(.schema == "result/1" and .request_id == $id and (.tenant // "default") == "default")
  | {status, usage, error, text: .choices[0]?.message.content}'

trap 'kill $(jobs -p) "${results_pid:-}" 2>/dev/null' EXIT
consume "$namespace.tokens" | jq -nj --unbuffered --arg id "$id" "$stream" >&2 &

# The result is the truth, and ends the reading: the deltas above, on stderr, are early news.
exec {results}< <(consume "$namespace.results")
results_pid=$!
ended=$(jq -cn --arg id "$id" "first(inputs | $result)" <&"$results")
echo >&2
jq -r '.text // .error.message' <<<"$ended"
jq -e '.status == "completed"' <<<"$ended" >/dev/null
