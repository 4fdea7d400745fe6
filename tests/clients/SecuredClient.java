// The Java client's side of test_secured_clients.py: for each properties file, writes one record and reads it back.
// Prints "ok FILE" or "failed FILE: why". Run as `java -cp 'libs/*' SecuredClient.java TOPIC FILE...`.

import java.io.FileReader;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class SecuredClient {
    public static void main(String[] args) {
        for (String file : Arrays.asList(args).subList(1, args.length)) {
            try {
                roundTrip(args[0], file);
                System.out.println("ok " + file);
            } catch (Exception problem) {
                System.out.println("failed " + file + ": " + problem);
            }
        }
    }

    static void roundTrip(String topic, String file) throws Exception {
        Properties settings = new Properties();
        try (FileReader reader = new FileReader(file)) {
            settings.load(reader);
        }
        try (Producer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(topic, file)).get(60, TimeUnit.SECONDS);
        }
        try (Consumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            while (System.nanoTime() < deadline)
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1)))
                    if (record.value().equals(file)) return;
        }
        throw new IllegalStateException("the record was not read");
    }
}
