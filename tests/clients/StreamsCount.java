// Counts the records of each key, exactly once: every input makes one output, `KEY COUNT`, until its input ends.
// The records pass through a repartition topic, and the counts are kept in a store with a changelog topic.
// Run as `java -cp 'libs/*' StreamsCount.java BOOTSTRAP SOURCE SINK APPLICATION STATE_DIRECTORY classic|streams`.

import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

public class StreamsCount {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("application.id", args[3]);
        settings.put("state.dir", args[4]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", 100);
        settings.put("statestore.cache.max.bytes", 0);  // one output for every input
        settings.put("num.stream.threads", 2);
        settings.put("replication.factor", -1);
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        settings.put("main.consumer.auto.offset.reset", "earliest");
        settings.put("group.protocol", args[5]);
        if (args[5].equals("classic")) {  // in a streams group, the broker decides about both
            settings.put("main.consumer.session.timeout.ms", 6000);
            settings.put("main.consumer.heartbeat.interval.ms", 300);
        }
        settings.put("main.consumer.max.poll.records", 20);
        settings.put("producer.transaction.timeout.ms", 5000);

        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(args[1])
            .selectKey((key, value) -> key)
            .groupByKey()
            .count(Materialized.with(Serdes.String(), Serdes.Long()))
            .toStream()
            .mapValues((key, count) -> key + " " + count)
            .to(args[2]);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(problem -> {
            System.err.println(problem);
            Runtime.getRuntime().halt(1);
            return null;
        });
        streams.start();
        while (System.in.read() >= 0) {}
        streams.close();
    }
}
