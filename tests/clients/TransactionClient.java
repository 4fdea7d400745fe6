// The Java client's side of test_transactions_java.py: runs every scenario against one broker and prints "ok NAME" or
// "failed NAME: why" for each. Run as `java -cp 'libs/*' TransactionClient.java BOOTSTRAP PREFIX`.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class TransactionClient {
    static String bootstrap;
    static String prefix;
    static int names = 0;
    static Admin admin;

    interface Scenario {
        void run() throws Exception;
    }

    public static void main(String[] args) {
        bootstrap = args[0];
        prefix = args[1];
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        scenario("commit and abort", TransactionClient::commitAndAbort);
        scenario("an epoch per transaction", TransactionClient::epochPerTransaction);
        scenario("fencing", TransactionClient::fencing);
        scenario("fenced while open", TransactionClient::fencedWhileOpen);
        scenario("fenced by an admin", TransactionClient::fencedByAdmin);
        scenario("offsets", () -> offsets("classic"));
        scenario("offsets of a consumer-protocol group", () -> offsets("consumer"));
        scenario("read committed stops at an open transaction", TransactionClient::lastStableOffset);
        scenario("timeout", TransactionClient::timeout);
        scenario("timeout too long", TransactionClient::timeoutTooLong);
        scenario("abort of nothing", TransactionClient::abortOfNothing);
        scenario("transactions are listed and described", TransactionClient::listed);
        scenario("a hundred in a row", TransactionClient::hundred);
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

    static String name() {
        return prefix + "-" + names++;
    }

    static String topic(int partitions) throws Exception {
        String name = name();
        admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1))).all().get();
        return name;
    }

    static KafkaProducer<String, String> producer(String id, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "transactional.id", id));
        all.putAll(settings);
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }

    static KafkaProducer<String, String> started(String id) {
        KafkaProducer<String, String> producer = producer(id, Map.of());
        producer.initTransactions();
        return producer;
    }

    static void send(Producer<String, String> producer, String topic, int partition, String value) {
        producer.send(new ProducerRecord<>(topic, partition, null, value));
    }

    static List<String> committed(String topic, int count) {
        return read(topic, count, "read_committed", Duration.ofSeconds(20));
    }

    static List<String> read(String topic, int count, String isolation, Duration limit) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "isolation.level", isolation,
            "auto.offset.reset", "earliest");
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(each -> partitions.add(new TopicPartition(topic, each.partition())));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long end = System.nanoTime() + limit.toNanos();
            while (found.size() < count && System.nanoTime() < end)
                consumer.poll(Duration.ofMillis(100)).forEach(record -> found.add(record.value()));
        }
        Collections.sort(found);
        return found;
    }

    static TransactionDescription describe(String id) throws Exception {
        return admin.describeTransactions(List.of(id)).description(id).get();
    }

    static void commitAndAbort() throws Exception {
        String topic = topic(2);
        try (KafkaProducer<String, String> producer = started(name())) {
            producer.beginTransaction();
            send(producer, topic, 0, "a");
            send(producer, topic, 1, "b");
            producer.commitTransaction();
            producer.beginTransaction();
            send(producer, topic, 0, "never");
            producer.flush();
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, topic, 0, "c");
            producer.commitTransaction();
        }
        List<String> found = committed(topic, 3);
        check(found.equals(List.of("a", "b", "c")), "read " + found);
        List<String> all = read(topic, 4, "read_uncommitted", Duration.ofSeconds(20));
        check(all.equals(List.of("a", "b", "c", "never")), "read uncommitted " + all);
    }

    static void epochPerTransaction() throws Exception {
        String topic = topic(1);
        String id = name();
        try (KafkaProducer<String, String> producer = started(id)) {
            long first = describe(id).producerEpoch();
            for (int round = 1; round <= 3; round++) {
                producer.beginTransaction();
                send(producer, topic, 0, "x" + round);
                producer.commitTransaction();
                check(describe(id).producerEpoch() == first + round, "epoch after " + round + ": " + describe(id));
            }
            check(describe(id).state() == TransactionState.COMPLETE_COMMIT, "state " + describe(id));
        }
    }

    static void fencing() throws Exception {
        String topic = topic(1);
        String id = name();
        KafkaProducer<String, String> zombie = started(id);
        try (KafkaProducer<String, String> producer = started(id)) {
            zombie.beginTransaction();
            try {
                zombie.send(new ProducerRecord<>(topic, "zombie")).get();
                check(false, "the zombie wrote");
            } catch (ExecutionException refused) {
                check(refused.getCause() instanceof InvalidProducerEpochException
                    || refused.getCause() instanceof ProducerFencedException, "the zombie got " + refused.getCause());
            }
            producer.beginTransaction();
            send(producer, topic, 0, "alive");
            producer.commitTransaction();
        } finally {
            zombie.close(Duration.ZERO);
        }
        check(committed(topic, 1).equals(List.of("alive")), "read " + committed(topic, 1));
    }

    static void fencedWhileOpen() throws Exception {
        String topic = topic(1);
        String id = name();
        KafkaProducer<String, String> zombie = started(id);
        zombie.beginTransaction();
        zombie.send(new ProducerRecord<>(topic, "zombie")).get();
        try (KafkaProducer<String, String> producer = started(id)) {
            try {
                zombie.commitTransaction();
                check(false, "the zombie committed");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                // as it should be
            }
            producer.beginTransaction();
            send(producer, topic, 0, "alive");
            producer.commitTransaction();
        } finally {
            zombie.close(Duration.ZERO);
        }
        check(committed(topic, 1).equals(List.of("alive")), "read " + committed(topic, 1));
    }

    static void fencedByAdmin() throws Exception {
        String topic = topic(1);
        String id = name();
        KafkaProducer<String, String> producer = started(id);
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, "never")).get();
        admin.fenceProducers(List.of(id)).all().get();
        try {
            producer.commitTransaction();
            check(false, "a fenced producer committed");
        } catch (ProducerFencedException | InvalidProducerEpochException expected) {
            // as it should be
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    static void offsets(String protocol) throws Exception {
        String topic = topic(1);
        String group = name();
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", group, "group.protocol",
            protocol, "enable.auto.commit", false, "auto.offset.reset", "earliest");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = started(name());
             KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            producer.beginTransaction();
            for (int i = 0; i < 3; i++) send(producer, topic, 0, "m" + i);
            producer.commitTransaction();
            consumer.subscribe(List.of(topic));
            int seen = 0;
            long end = System.nanoTime() + Duration.ofSeconds(30).toNanos();
            while (seen < 3 && System.nanoTime() < end) seen += consumer.poll(Duration.ofMillis(100)).count();
            check(seen == 3, "saw " + seen);
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(1)), consumer.groupMetadata());
            producer.abortTransaction();
            check(consumer.committed(Set.of(partition)).get(partition) == null, "an aborted commit counts");
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(2)), consumer.groupMetadata());
            Map<TopicPartition, OffsetAndMetadata> open =
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            check(!open.containsKey(partition), "an open commit shows: " + open);
            producer.commitTransaction();
            check(consumer.committed(Set.of(partition)).get(partition).offset() == 2, "a commit does not count");
            ConsumerGroupMetadata stale = new ConsumerGroupMetadata(group, 4711, consumer.groupMetadata().memberId(),
                Optional.empty());
            producer.beginTransaction();
            try {
                producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(3)), stale);
                check(false, "a stale generation commits");
            } catch (CommitFailedException expected) {
                producer.abortTransaction();
            }
        }
    }

    static void lastStableOffset() throws Exception {
        String topic = topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> one = started(name()); KafkaProducer<String, String> two = started(name())) {
            one.beginTransaction();
            one.send(new ProducerRecord<>(topic, 0, null, "one")).get();
            two.beginTransaction();
            send(two, topic, 0, "two");
            two.commitTransaction();
            check(read(topic, 1, "read_committed", Duration.ofMillis(500)).isEmpty(), "read past an open transaction");
            var stable = admin.listOffsets(Map.of(partition, OffsetSpec.latest()),
                new ListOffsetsOptions(org.apache.kafka.common.IsolationLevel.READ_COMMITTED));
            check(stable.partitionResult(partition).get().offset() == 0, "the last stable offset moved");
            one.commitTransaction();
        }
        check(committed(topic, 2).equals(List.of("one", "two")), "read " + committed(topic, 2));
    }

    static void timeout() throws Exception {
        String topic = topic(1);
        String id = name();
        KafkaProducer<String, String> producer = producer(id, Map.of("transaction.timeout.ms", 500));
        try {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "late")).get();
            long end = System.nanoTime() + Duration.ofSeconds(30).toNanos();
            while (describe(id).state() != TransactionState.COMPLETE_ABORT && System.nanoTime() < end)
                Thread.sleep(50);
            check(describe(id).state() == TransactionState.COMPLETE_ABORT, "state " + describe(id));
            try {
                producer.commitTransaction();
                check(false, "a commit after the timeout");
            } catch (org.apache.kafka.common.KafkaException expected) {
                // as it should be
            }
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    static void timeoutTooLong() {
        try (KafkaProducer<String, String> producer =
                 producer(name(), Map.of("transaction.timeout.ms", Integer.MAX_VALUE - 1))) {
            producer.initTransactions();
            check(false, "any timeout is taken");
        } catch (org.apache.kafka.common.KafkaException expected) {
            check(expected.getMessage().contains("transaction timeout is larger"), "got " + expected);
        }
    }

    static void abortOfNothing() throws Exception {
        String topic = topic(1);
        try (KafkaProducer<String, String> producer = started(name())) {
            producer.beginTransaction();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.commitTransaction();
            producer.beginTransaction();
            send(producer, topic, 0, "some");
            producer.commitTransaction();
        }
        check(committed(topic, 1).equals(List.of("some")), "read " + committed(topic, 1));
    }

    static void listed() throws Exception {
        String topic = topic(2);
        String id = name();
        try (KafkaProducer<String, String> producer = started(id)) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 1, null, "open")).get();
            TransactionDescription open = describe(id);
            check(open.state() == TransactionState.ONGOING, "state " + open);
            check(open.topicPartitions().equals(Set.of(new TopicPartition(topic, 1))), "partitions " + open);
            check(open.transactionStartTimeMs().isPresent(), "no start " + open);
            var ongoing = admin.listTransactions(
                new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING))).all().get();
            check(ongoing.stream().anyMatch(each -> each.transactionalId().equals(id)), "not listed: " + ongoing);
            var pattern = admin.listTransactions(
                new ListTransactionsOptions().filterOnTransactionalIdPattern(id)).all().get();
            check(pattern.size() == 1, "by pattern: " + pattern);
            var young = admin.listTransactions(new ListTransactionsOptions().filterOnDuration(3_600_000)
                .filterStates(Set.of(TransactionState.ONGOING))).all().get();
            check(young.stream().noneMatch(each -> each.transactionalId().equals(id)), "listed as old: " + young);
            TopicPartition partition = new TopicPartition(topic, 1);
            var producers = admin.describeProducers(List.of(partition)).partitionResult(partition).get();
            check(producers.activeProducers().get(0).currentTransactionStartOffset().getAsLong() == 0,
                "producers " + producers.activeProducers());
            producer.commitTransaction();
        }
        try {
            describe(name());
            check(false, "an unknown id is described");
        } catch (ExecutionException refused) {
            check(refused.getCause() instanceof TransactionalIdNotFoundException, "got " + refused.getCause());
        }
    }

    static void hundred() throws Exception {
        String topic = topic(3);
        List<String> expected = new ArrayList<>();
        try (KafkaProducer<String, String> producer = started(name())) {
            for (int round = 0; round < 100; round++) {
                producer.beginTransaction();
                for (int partition = 0; partition < 3; partition++) {
                    String value = String.format("%03d-%d", round, partition);
                    send(producer, topic, partition, value);
                    if (round % 3 != 0) expected.add(value);
                }
                // Without this flush, kafka-clients 4.3 may send EndTxn before the batches: its sender asks for unsent
                // batches before it locks the transaction manager. Kafka answers INVALID_TXN_STATE then, as Penstock does.
                producer.flush();
                if (round % 3 != 0) producer.commitTransaction();
                else producer.abortTransaction();
            }
        }
        List<String> found = committed(topic, expected.size());
        check(found.equals(expected), "read " + found);
    }
}
