"""Contains the broker properties of the cluster, its controllers and its metadata. `broker.py` defines the format."""

ROWS = """
add.partitions.to.txn.retry.backoff.max.ms INT =100 [0..] high
    Longest pause while a transaction's new partition waits for an earlier change to finish.
add.partitions.to.txn.retry.backoff.ms INT =20 [1..] high
    First pause while a transaction's new partition waits for an earlier change to finish.
auto.create.topics.enable BOOLEAN =true high
    Create a missing topic when a client requests its metadata and allows its creation.
auto.leader.rebalance.enable BOOLEAN =true high
    Return leadership to preferred replicas periodically.
background.threads INT =10 [1..] high cluster-wide unsupported
    Threads for background work; Penstock has one loop and helper threads of its own choosing.
broker.heartbeat.interval.ms INT =2000
    Interval at which a broker sends heartbeats to the controller.
broker.id INT =-1 high
    Older name of node.id; when both are given they must agree.
broker.rack STRING
    Rack or zone of the broker; replicas of a partition are spread over different racks.
broker.session.timeout.ms INT =9000
    Time without a heartbeat after which the controller fences a broker.
config.providers LIST = low cluster-wide
    Providers that replace placeholders in property values.
controlled.shutdown.enable BOOLEAN =true
    Move leaderships to other brokers before a stop.
controller.listener.names LIST high
    Names of the listeners on which controllers accept connections of other controllers and of brokers.
controller.performance.always.log.threshold.ms LONG =2000 [0..] internal unsupported
    Time from which a slow controller event is always logged.
controller.performance.sample.period.ms LONG =60000 [100..] internal unsupported
    How often the controller logs its own performance.
controller.quorum.append.linger.ms INT =25 [0..] unsupported
    How long the quorum's leader gathers records before it writes them; Penstock shares one fsync instead.
controller.quorum.auto.join.enable BOOLEAN =false low
    Whether a new controller asks by itself to become a voter.
controller.quorum.bootstrap.servers LIST = high
    Addresses where a node finds the metadata quorum.
controller.quorum.election.backoff.max.ms INT =1000 [0..] high
    Longest random pause after a lost election.
controller.quorum.election.timeout.ms INT =1000 [0..] high
    How long a candidate waits for votes before it tries again.
controller.quorum.fetch.max.bytes INT =1048576 [1..] low
    Bytes of metadata log that one fetch between controllers may bring.
controller.quorum.fetch.snapshot.max.bytes INT =1048576 [1..] low
    Bytes of a metadata snapshot that one fetch may bring.
controller.quorum.fetch.timeout.ms INT =2000 [0..] high
    How long a voter goes without a successful fetch from the leader before it calls an election.
controller.quorum.request.timeout.ms INT =2000 [0..]
    How long a quorum request may take.
controller.quorum.retry.backoff.ms INT =20 [0..] low
    Pause before a failed quorum request is tried again.
controller.quorum.voters LIST = high
    The fixed voters of the metadata quorum as id@host:port, for a quorum formatted without its own voter set.
controller.socket.timeout.ms INT =30000 unsupported
    How long a broker's connection to the controller may be silent.
delete.topic.enable BOOLEAN =true high
    Whether topics may be deleted.
initial.broker.registration.timeout.ms INT =60000
    How long a starting broker tries to register before it gives up.
internal.metadata.delete.delay.millis LONG =60000 low internal unsupported
    How long deleted files of the metadata log stay on disk.
internal.metadata.log.segment.bytes INT low internal unsupported
    Segment size of the metadata log without a lower limit, for tests.
internal.metadata.max.batch.size.in.bytes INT =8388608 low internal unsupported
    Largest batch that the metadata log takes.
leader.imbalance.check.interval.seconds LONG =300 [1..] high
    How often preferred leadership is checked.
max.request.partition.size.limit INT =2000 [1..]
    Largest number of partitions in one answer to DescribeTopicPartitions.
metadata.log.dir STRING high
    Directory of the metadata log; the first of log.dirs when not set.
metadata.log.max.record.bytes.between.snapshots LONG =20971520 [1..] high
    Bytes of metadata log after which a snapshot is taken.
metadata.log.max.snapshot.interval.ms LONG =3600000 [0..] high
    Time after which a snapshot of changed metadata is taken.
metadata.log.segment.bytes INT =1073741824 [8388608..] high
    Size at which a segment of the metadata log is closed.
metadata.log.segment.ms LONG =604800000 high
    Age at which a segment of the metadata log is closed.
metadata.max.idle.interval.ms INT =500 [0..] low unsupported
    How often an idle controller writes a no-op record, so that followers see that it is alive; 0 is never.
metadata.max.retention.bytes LONG =104857600 high unsupported
    Size of metadata log and snapshots above which old ones are deleted.
metadata.max.retention.ms LONG =604800000 high unsupported
    Age of metadata log and snapshots above which old ones are deleted.
node.id INT [0..] high
    Number of this node, unique in the cluster.
process.roles LIST {broker|controller} high
    Roles of this node: broker, controller or both.
server.max.startup.time.ms LONG =9223372036854775807 [0..] internal unsupported
    How long start-up may take before the node gives up.
unclean.leader.election.interval.ms LONG =300000 [1..] internal
    How often the controller checks for partitions that need an unclean election.
unstable.api.versions.enable BOOLEAN =false high internal unsupported
    Serve versions of requests that are still unstable.
unstable.feature.versions.enable BOOLEAN =false high internal unsupported
    Allow feature levels that are still unstable.
"""
