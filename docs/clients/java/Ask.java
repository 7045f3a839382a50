// Ask headrace one question with Kafka's own client, print the tokens as they come, stop at the result.
//
// Needs org.apache.kafka:kafka-clients, com.fasterxml.jackson.core:jackson-databind and an slf4j binding in `libs`:
//   KAFKA_BROKERS=localhost:9092 java -cp 'libs/*' Ask.java "Why is the sky blue?" [SESSION]

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class Ask {
    private static final String BROKERS = setting("KAFKA_BROKERS", "localhost:9092");
    private static final String NAMESPACE = setting("NAMESPACE", "headrace");
    private static final String MODEL = setting("MODEL", "smollm2-135m-instruct");
    private static final String TENANT = "default";
    private static final Duration TIMEOUT = Duration.ofSeconds(120);

    // Reading begins this long before the request was accepted: time enough for a worker that was replaced to fall
    // silent.
    private static final Duration REWIND = Duration.ofSeconds(30);

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private final String requestId;
    private final Map<String, Long> epochs = new HashMap<>(); // the newest takeover of each source so far
    private int nextIndex = 0;
    private String shown = "";

    private Ask(String requestId) {
        this.requestId = requestId;
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode result = ask(arguments[0], arguments.length > 1 ? arguments[1] : null);
        ObjectNode ended = JSON.createObjectNode();
        List.of("status", "usage", "error").forEach(name -> ended.set(name, result.get(name)));
        System.err.println(ended);
        System.exit(result.get("status").asText().equals("completed") ? 0 : 1);
    }

    private static JsonNode ask(String text, String session) throws Exception {
        ObjectNode request = JSON.createObjectNode().put("id", UUID.randomUUID().toString()).put("model", MODEL);
        request.putArray("messages").addObject().put("role", "user").put("content", text);
        if (session != null) {
            request.put("session", session);
        }
        RecordMetadata sent = send(request);
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", BROKERS,
                "enable.auto.commit", false,
                "isolation.level", "read_committed");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> partitions = List.of(
                    new TopicPartition(NAMESPACE + ".tokens", sent.partition()),
                    new TopicPartition(NAMESPACE + ".results", sent.partition()));
            consumer.assign(partitions);
            for (TopicPartition partition : partitions) {
                consumer.seek(partition, start(consumer, partition, sent.timestamp() - REWIND.toMillis()));
            }
            return new Ask(request.get("id").asText()).read(consumer);
        }
    }

    /** Produce the request. The acknowledgement tells its partition, and the time that the broker gave it. */
    private static RecordMetadata send(ObjectNode request) throws ExecutionException, InterruptedException {
        // The default partitioner is murmur2 of the key; acks=all and idempotence are defaults as well.
        Map<String, Object> settings = Map.of("bootstrap.servers", BROKERS);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            String key = (request.has("session") ? request.get("session") : request.get("id")).asText();
            return producer.send(new ProducerRecord<>(NAMESPACE + ".requests", key, request.toString())).get();
        }
    }

    /** The first record at or after a broker time, or the end, which is asked for first: records arrive meanwhile. */
    private static long start(KafkaConsumer<String, String> consumer, TopicPartition partition, long timeMs) {
        long end = consumer.endOffsets(List.of(partition)).get(partition);
        OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, timeMs)).get(partition);
        return found == null ? end : Math.min(end, found.offset());
    }

    private JsonNode read(KafkaConsumer<String, String> consumer) throws Exception {
        Instant deadline = Instant.now().plus(TIMEOUT);
        while (Instant.now().isBefore(deadline)) {
            for (ConsumerRecord<String, String> fetched : consumer.poll(Duration.ofSeconds(1))) {
                JsonNode record = JSON.readTree(fetched.value());
                if (take(record, fetched.offset())) {
                    return record;
                }
            }
        }
        throw new IllegalStateException("no result within " + TIMEOUT.toSeconds() + " s");
    }

    /** Take one record of `tokens` or `results`, and say whether it is the result. */
    private boolean take(JsonNode record, long offset) {
        String kind = record.path("schema").asText();
        if (kind.equals("takeover/1")) {
            epochs.put(record.get("source").asText(), offset);
            return false;
        }
        if (!record.path("request_id").asText().equals(requestId)
                || !record.path("tenant").asText("default").equals(TENANT)) {
            return false;
        }
        if (kind.equals("delta/1")) {
            takeDelta(record);
        } else if (kind.equals("result/1")) {
            finish(record);
            return true;
        }
        return false;
    }

    private void takeDelta(JsonNode delta) {
        boolean isVoid = delta.get("epoch").asLong() < epochs.getOrDefault(delta.get("source").asText(), 0L);
        if (isVoid || delta.get("index").asInt() != nextIndex) {
            return;
        }
        JsonNode choice = delta.get("choices").get(0);
        String piece = choice.path("delta").path("content").asText("");
        OUT.print(piece);
        OUT.flush();
        shown += piece;
        // After the last delta no index fits any more.
        nextIndex = choice.hasNonNull("finish_reason") ? -1 : nextIndex + delta.path("token_ids").size();
    }

    /** The result is the truth: `tokens` and `results` are two topics, and its last deltas may come behind it. */
    private void finish(JsonNode result) {
        String text = result.path("choices").path(0).path("message").path("content").asText("");
        OUT.println(text.startsWith(shown) ? text.substring(shown.length()) : "\n" + text);
    }

    private static String setting(String name, String otherwise) {
        return System.getenv().getOrDefault(name, otherwise);
    }
}
