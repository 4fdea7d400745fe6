// The Java client's side of test_java_client.py: runs every scenario against one broker and prints "ok NAME" or
// "failed NAME: why" for each. Run as `java -cp 'libs/*' JavaClient.java BOOTSTRAP PREFIX`.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.*;

public class JavaClient {
    static String bootstrap;
    static String prefix;
    static int topics = 0;
    static Admin admin;

    interface Scenario {
        void run() throws Exception;
    }

    public static void main(String[] args) {
        bootstrap = args[0];
        prefix = args[1];
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
            for (String acks : List.of("0", "1", "all"))
                scenario("round-trip " + codec + " acks=" + acks, () -> roundTrip(codec, acks));
        scenario("idempotence", JavaClient::idempotence);
        scenario("headers and nulls", JavaClient::headersAndNulls);
        scenario("ten megabytes", JavaClient::tenMegabytes);
        scenario("too large", JavaClient::tooLarge);
        scenario("middle and time", JavaClient::middleAndTime);
        scenario("admin", JavaClient::adminCalls);
        scenario("read committed", JavaClient::readCommitted);
        scenario("unknown topic", JavaClient::unknownTopic);
        admin.close();
    }

    static void scenario(String name, Scenario scenario) {
        try {
            scenario.run();
            System.out.println("ok " + name);
        } catch (Throwable problem) {
            System.out.println("failed " + name + ": " + problem);
            problem.printStackTrace();
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static String topic(int partitions, Map<String, String> configs) throws Exception {
        String name = prefix + "-" + topics++;
        admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1).configs(configs))).all().get();
        return name;
    }

    static KafkaProducer<byte[], byte[]> producer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "linger.ms", 2));
        all.putAll(settings);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static void produce(String topic, List<byte[]> values, Map<String, Object> settings) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (byte[] value : values) sent.add(producer.send(new ProducerRecord<>(topic, 0, null, value)));
            for (Future<RecordMetadata> each : sent) each.get();
        }
    }

    static List<ConsumerRecord<byte[], byte[]>> consume(String topic, int count, long from, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        all.putAll(settings);
        List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
        try (var consumer = new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seek(partition, from);
            long deadline = System.currentTimeMillis() + 30_000;
            while (got.size() < count && System.currentTimeMillis() < deadline)
                consumer.poll(Duration.ofMillis(500)).forEach(got::add);
        }
        return got;
    }

    static List<byte[]> numbered(int count, int padding) {
        List<byte[]> values = new ArrayList<>();
        for (int i = 0; i < count; i++) values.add((i + " " + "x".repeat(padding)).getBytes());
        return values;
    }

    static void same(List<byte[]> expected, List<ConsumerRecord<byte[], byte[]>> got) {
        check(got.size() == expected.size(), "got " + got.size() + " records of " + expected.size());
        for (int i = 0; i < got.size(); i++) {
            check(got.get(i).offset() == i, "offset " + got.get(i).offset() + " at " + i);
            check(Arrays.equals(got.get(i).value(), expected.get(i)), "value at " + i);
        }
    }

    static void roundTrip(String codec, String acks) throws Exception {
        String topic = topic(1, Map.of());
        List<byte[]> values = numbered(100, 200);
        produce(topic, values, Map.of("compression.type", codec, "acks", acks));
        same(values, consume(topic, 100, 0, Map.of()));
    }

    static void idempotence() throws Exception {
        String topic = topic(1, Map.of());
        List<byte[]> values = numbered(5000, 10);
        produce(topic, values, Map.of("enable.idempotence", true, "batch.size", 500));
        same(values, consume(topic, 5000, 0, Map.of()));
    }

    static void headersAndNulls() throws Exception {
        String topic = topic(1, Map.of());
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            ProducerRecord<byte[], byte[]> first = new ProducerRecord<>(topic, 0, null, "v".getBytes());
            first.headers().add("a", "1".getBytes()).add("a", "2".getBytes()).add("null", null);
            producer.send(first).get();
            producer.send(new ProducerRecord<>(topic, 0, "tombstone".getBytes(), null)).get();
        }
        var got = consume(topic, 2, 0, Map.of());
        check(got.get(0).key() == null && new String(got.get(0).value()).equals("v"), "the first record");
        StringBuilder headers = new StringBuilder();
        for (Header header : got.get(0).headers())
            headers.append(header.key()).append('=').append(header.value() == null ? "null" : new String(header.value())).append(' ');
        check(headers.toString().equals("a=1 a=2 null=null "), "headers are " + headers);
        check(new String(got.get(1).key()).equals("tombstone") && got.get(1).value() == null, "the tombstone");
    }

    static void tenMegabytes() throws Exception {
        int size = 10 * 1024 * 1024, limit = size + 4096;
        String topic = topic(1, Map.of("max.message.bytes", "" + limit));
        byte[] value = new byte[size];
        new Random(1).nextBytes(value);
        produce(topic, List.of(value), Map.of("max.request.size", limit));
        same(List.of(value), consume(topic, 1, 0, Map.of()));
    }

    static void tooLarge() throws Exception {
        String topic = topic(1, Map.of("max.message.bytes", "1000"));
        try {
            produce(topic, List.of(new byte[5000]), Map.of());
            throw new AssertionError("a record over the limit was taken");
        } catch (java.util.concurrent.ExecutionException refused) {
            check(refused.getCause() instanceof RecordTooLargeException, "refused with " + refused.getCause());
        }
    }

    static void middleAndTime() throws Exception {
        String topic = topic(1, Map.of());
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            for (int i = 0; i < 20; i++)
                producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_000L + i * 1000, null, ("" + i).getBytes())).get();
        }
        check(consume(topic, 3, 7, Map.of()).get(0).offset() == 7, "the first record from the middle");
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, 1_700_000_004_500L)).get(partition);
            check(found.offset() == 5 && found.timestamp() == 1_700_000_005_000L, "by time " + found);
            check(consumer.offsetsForTimes(Map.of(partition, 1_800_000_000_000L)).get(partition) == null, "no such time");
            check(consumer.endOffsets(List.of(partition)).get(partition) == 20, "the end");
            check(consumer.beginningOffsets(List.of(partition)).get(partition) == 0, "the beginning");
        }
    }

    static void adminCalls() throws Exception {
        String topic = topic(3, Map.of("retention.ms", "60000"));
        check(admin.listTopics().names().get().contains(topic), "the topic is listed");
        TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        check(described.partitions().size() == 3, "partitions");
        check(admin.describeCluster().nodes().get().size() >= 1, "nodes");
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        check(config.get("retention.ms").value().equals("60000"), "a config of the topic");
        check(config.get("retention.ms").source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, "its source");
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
        config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        check(config.get("cleanup.policy").value().equals("delete,compact"), "appended: " + config.get("cleanup.policy").value());
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
        check(admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size() == 4, "grown");
        check(admin.describeLogDirs(List.of(described.partitions().get(0).leader().id())).allDescriptions().get().size() == 1, "log dirs");
        check(admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("metadata.version"), "features");
        check(admin.describeMetadataQuorum().quorumInfo().get().leaderId() >= 0, "the quorum's leader");
        admin.deleteTopics(List.of(topic)).all().get();
        check(!admin.listTopics().names().get().contains(topic), "the topic is gone");
    }

    static void readCommitted() throws Exception {
        String topic = topic(1, Map.of());
        List<byte[]> values = numbered(10, 1);
        produce(topic, values, Map.of());
        same(values, consume(topic, 10, 0, Map.of("isolation.level", "read_committed")));
    }

    static void unknownTopic() throws Exception {
        try {
            admin.describeTopics(List.of(prefix + "-absent")).allTopicNames().get();
            throw new AssertionError("a topic that is not there was described");
        } catch (java.util.concurrent.ExecutionException refused) {
            check(refused.getCause() instanceof UnknownTopicOrPartitionException, "refused with " + refused.getCause());
        }
    }
}
