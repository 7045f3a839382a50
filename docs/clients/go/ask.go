// Ask headrace one question with franz-go, print the tokens as they come, stop at the result.
//
//	go mod init ask && go get github.com/twmb/franz-go@latest github.com/twmb/franz-go/pkg/kadm@latest
//	KAFKA_BROKERS=localhost:9092 go run ask.go "Why is the sky blue?" [SESSION]
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	tenant  = "default"
	timeout = 120 * time.Second

	// Reading begins this long before the request was accepted: time enough for a worker that was replaced to fall
	// silent.
	rewind = 30 * time.Second
)

var (
	brokers   = strings.Split(setting("KAFKA_BROKERS", "localhost:9092"), ",")
	namespace = setting("NAMESPACE", "headrace")
	model     = setting("MODEL", "smollm2-135m-instruct")
)

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type request struct {
	ID       string    `json:"id"`
	Session  string    `json:"session,omitempty"`
	Model    string    `json:"model"`
	Messages []message `json:"messages"`
}

// record holds what we need of any record of `tokens` and `results`; fields that it lacks stay empty.
type record struct {
	Schema    string `json:"schema"`
	RequestID string `json:"request_id"`
	Tenant    string `json:"tenant"`
	Source    string `json:"source"`
	Epoch     int64  `json:"epoch"`
	Index     int    `json:"index"`
	TokenIDs  []int  `json:"token_ids"`
	Choices   []struct {
		Delta        message `json:"delta"`
		Message      message `json:"message"`
		FinishReason string  `json:"finish_reason"`
	} `json:"choices"`
	Status string          `json:"status"`
	Usage  json.RawMessage `json:"usage"`
	Error  json.RawMessage `json:"error"`
}

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: ask TEXT [SESSION]")
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	asked := request{ID: newID(), Model: model, Messages: []message{{Role: "user", Content: os.Args[1]}}}
	if len(os.Args) > 2 {
		asked.Session = os.Args[2]
	}
	result, err := ask(ctx, asked)
	if err != nil {
		log.Fatal(err)
	}
	ended, _ := json.Marshal(map[string]any{"status": result.Status, "usage": result.Usage, "error": result.Error})
	fmt.Fprintln(os.Stderr, string(ended))
	if result.Status != "completed" {
		os.Exit(1)
	}
}

func ask(ctx context.Context, asked request) (*record, error) {
	// franz-go's default partitioner is Kafka's (murmur2), and its producer is idempotent with acks of all replicas.
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	sent, err := send(ctx, client, asked)
	if err != nil {
		return nil, err
	}
	starts := map[string]map[int32]kgo.Offset{}
	for _, topic := range []string{namespace + ".tokens", namespace + ".results"} {
		offset, err := start(ctx, kadm.NewClient(client), topic, sent.Partition, sent.Timestamp.Add(-rewind))
		if err != nil {
			return nil, err
		}
		starts[topic] = map[int32]kgo.Offset{sent.Partition: kgo.NewOffset().At(offset)}
	}
	client.AddConsumePartitions(starts)
	return read(ctx, client, asked.ID)
}

// send produces the request. The acknowledgement tells its partition, and the time that the broker gave it.
func send(ctx context.Context, client *kgo.Client, asked request) (*kgo.Record, error) {
	key := asked.Session
	if key == "" {
		key = asked.ID
	}
	value, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	return client.ProduceSync(ctx, &kgo.Record{Topic: namespace + ".requests", Key: []byte(key), Value: value}).First()
}

// start is the first record at or after a broker time, or the end, which is asked for first: records arrive meanwhile.
func start(ctx context.Context, admin *kadm.Client, topic string, partition int32, at time.Time) (int64, error) {
	ends, err := admin.ListCommittedOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	found, err := admin.ListOffsetsAfterMilli(ctx, at.UnixMilli(), topic)
	if err != nil {
		return 0, err
	}
	end, _ := ends.Lookup(topic, partition)
	first, _ := found.Lookup(topic, partition)
	if end.Err != nil || first.Err != nil {
		return 0, fmt.Errorf("offsets of %s: %v, %v", topic, end.Err, first.Err)
	}
	return min(end.Offset, first.Offset), nil
}

// read prints each delta that counts, and gives the result.
func read(ctx context.Context, client *kgo.Client, requestID string) (*record, error) {
	epochs := map[string]int64{} // the newest takeover of each source so far
	nextIndex := 0
	shown := ""
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		for _, fetched := range fetches.Records() {
			var found record
			if err := json.Unmarshal(fetched.Value, &found); err != nil {
				return nil, err
			}
			if found.Schema == "takeover/1" {
				epochs[found.Source] = fetched.Offset
				continue
			}
			if found.RequestID != requestID || (found.Tenant != "" && found.Tenant != tenant) {
				continue
			}
			switch found.Schema {
			case "delta/1":
				if found.Epoch < epochs[found.Source] || found.Index != nextIndex {
					continue // void, or seen before
				}
				choice := found.Choices[0]
				fmt.Print(choice.Delta.Content)
				shown += choice.Delta.Content
				nextIndex += len(found.TokenIDs)
				if choice.FinishReason != "" {
					nextIndex = -1 // after the last delta no index fits any more
				}
			case "result/1":
				finish(&found, shown)
				return &found, nil
			}
		}
	}
}

// finish: the result is the truth. `tokens` and `results` are two topics, and its last deltas may come behind it.
func finish(result *record, shown string) {
	text := ""
	if len(result.Choices) > 0 {
		text = result.Choices[0].Message.Content
	}
	if rest, isPrefix := strings.CutPrefix(text, shown); isPrefix {
		fmt.Println(rest)
	} else {
		fmt.Println("\n" + text)
	}
}

// newID is a random UUID (RFC 9562, version 4).
func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
