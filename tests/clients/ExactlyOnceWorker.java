// Reads a topic, writes each record to another and its own position with it, in transactions, until it is killed.
// Anything unexpected ends the process: whoever started it starts it again.
// Run as `java -cp 'libs/*' ExactlyOnceWorker.java BOOTSTRAP SOURCE SINK GROUP INSTANCE`.

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class ExactlyOnceWorker {
    public static void main(String[] args) {
        String bootstrap = args[0], source = args[1], sink = args[2], group = args[3], instance = args[4];
        Map<String, Object> producing = Map.of("bootstrap.servers", bootstrap, "transactional.id",
            group + "-" + instance, "max.block.ms", 20000, "delivery.timeout.ms", 20000, "request.timeout.ms", 5000,
            "linger.ms", 0);
        Map<String, Object> consuming = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", group,
            "group.instance.id", instance, "session.timeout.ms", 6000, "heartbeat.interval.ms", 300,
            "enable.auto.commit", false, "auto.offset.reset", "earliest", "isolation.level", "read_committed",
            "max.poll.records", 7));
        try {
            var producer = new KafkaProducer<byte[], byte[]>(producing, new ByteArraySerializer(),
                new ByteArraySerializer());
            producer.initTransactions();
            var consumer = new KafkaConsumer<byte[], byte[]>(consuming, new ByteArrayDeserializer(),
                new ByteArrayDeserializer());
            consumer.subscribe(List.of(source));
            while (true) {
                var records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) continue;
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
                for (var record : records) {
                    producer.send(new ProducerRecord<>(sink, record.partition(), null, record.value()));
                    positions.put(new TopicPartition(source, record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
                producer.commitTransaction();
            }
        } catch (Throwable problem) {
            System.err.println(problem);
            Runtime.getRuntime().halt(1);
        }
    }
}
