// A member of a group until its input ends: see group_member.py, which says what the lines mean.
// Run as `java -cp 'libs/*' GroupMember.java PROTOCOL BOOTSTRAP TOPIC GROUP SESSION_MS`.

import java.time.Duration;
import java.util.*;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class GroupMember {
    static final TreeSet<Integer> owned = new TreeSet<>();
    static volatile boolean ended = false;

    static synchronized void say(String text) {
        // The same clock as Python's time.monotonic().
        System.out.printf(Locale.ROOT, "%.6f %s%n", System.nanoTime() / 1e9, text);
        System.out.flush();
    }

    static void sayOwned() {
        say("owned " + owned.stream().map(String::valueOf).collect(Collectors.joining(",")));
    }

    public static void main(String[] args) {
        String protocol = args[0], topic = args[2];
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", args[1], "group.id", args[3],
            "group.protocol", protocol, "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "metadata.max.age.ms", 500));
        if (protocol.equals("classic")) {
            settings.putAll(Map.of("session.timeout.ms", args[4], "heartbeat.interval.ms", 200,
                "partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor"));
        }
        Thread waiting = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (java.io.IOException ignored) {}
            ended = true;
        });
        waiting.setDaemon(true);
        waiting.start();
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    for (var each : partitions) owned.add(each.partition());
                    sayOwned();
                }

                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    for (var each : partitions) owned.remove(each.partition());
                    sayOwned();
                }

                public void onPartitionsLost(Collection<TopicPartition> partitions) {
                    owned.clear();
                    say("lost");
                }
            });
            while (!ended) {
                var records = consumer.poll(Duration.ofMillis(50));
                for (var record : records) say("value " + record.value());
                if (records.isEmpty()) continue;
                try {
                    consumer.commitSync();
                } catch (CommitFailedException | org.apache.kafka.common.errors.RetriableException refused) {
                    say("uncommitted " + refused.getClass().getSimpleName());
                }
            }
            owned.clear();
            sayOwned();
        }
    }
}
