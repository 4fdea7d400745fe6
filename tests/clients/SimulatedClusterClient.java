// The Java client's side of test_simulated_cluster.py: an idempotent producer numbers its records and a group of one
// consumer reads them, until standard input ends. Prints "acknowledged NUMBER OFFSET", "failed NUMBER WHY" and "read
// PARTITION OFFSET NUMBER", and ends when the consumer has read every acknowledged record.
// Run as `java -cp 'libs/*' SimulatedClusterClient.java BOOTSTRAP TOPIC PARTITIONS`.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class SimulatedClusterClient {
    static final int BEHIND = 2_000;
    static final long LIMIT_MS = 90_000;
    static final Set<Integer> acknowledged = ConcurrentHashMap.newKeySet();
    static volatile boolean enough = false;
    static volatile boolean written = false;

    public static void main(String[] args) throws Exception {
        Thread writer = new Thread(() -> write(args[0], args[1], Integer.parseInt(args[2])));
        Thread reader = new Thread(() -> read(args[0], args[1]));
        writer.start();
        reader.start();
        while (System.in.read() >= 0) {}
        enough = true;
        writer.join();
        written = true;
        reader.join();
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static void write(String bootstrap, String topic, int partitions) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap, "acks", "all", "enable.idempotence", true, "linger.ms", 2,
            "delivery.timeout.ms", 120_000, "request.timeout.ms", 10_000, "max.block.ms", 120_000,
            "reconnect.backoff.max.ms", 500);
        AtomicInteger settled = new AtomicInteger();
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; !enough; number++) {
                final int own = number;
                var record = new ProducerRecord<String, String>(topic, number % partitions, null, "" + number);
                producer.send(record, (metadata, error) -> {
                    settled.incrementAndGet();
                    if (error == null) {
                        acknowledged.add(own);
                        say("acknowledged " + own + " " + metadata.offset());
                    } else {
                        say("failed " + own + " " + error);
                    }
                });
                do {
                    Thread.sleep(number % 20 == 0 || number - settled.get() > BEHIND ? 10 : 0);
                } while (number - settled.get() > BEHIND && !enough);
            }
            producer.flush();
        } catch (Exception problem) {
            say("failed -1 " + problem);
        }
    }

    static void read(String bootstrap, String topic) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap, "group.id", "java-" + topic, "auto.offset.reset", "earliest",
            "enable.auto.commit", false, "reconnect.backoff.max.ms", 500, "default.api.timeout.ms", 20_000);
        Set<Integer> seen = new HashSet<>();
        long deadline = 0;
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (!written || !seen.containsAll(acknowledged)) {
                if (written && deadline == 0) deadline = System.currentTimeMillis() + LIMIT_MS;
                if (deadline > 0 && System.currentTimeMillis() > deadline) break;
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    seen.add(Integer.parseInt(record.value()));
                    say("read " + record.partition() + " " + record.offset() + " " + record.value());
                }
                try {
                    consumer.commitSync();
                } catch (CommitFailedException | RebalanceInProgressException | TimeoutException problem) {
                    // The group has changed, or its coordinator is down: the next round commits again.
                }
            }
        } catch (Exception problem) {
            say("failed -2 " + problem);
        }
    }
}
