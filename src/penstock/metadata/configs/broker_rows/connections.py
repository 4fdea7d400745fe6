"""Contains the broker properties of listeners, sockets, requests, quotas and metrics. `broker.py` defines the
format."""

ROWS = """
advertised.listeners LIST high
    Addresses given to clients when they differ from the listeners.
alter.log.dirs.replication.quota.window.num INT =11 [1..] low
    Samples kept for the throttle of moves between log directories.
alter.log.dirs.replication.quota.window.size.seconds INT =1 [1..] low
    Length of each sample for the throttle of moves between log directories.
connection.failed.authentication.delay.ms INT =100 [0..] low
    How long a failed authentication waits before the connection is closed.
connections.max.idle.ms LONG =600000
    Idle time after which a client connection is closed.
connections.max.reauth.ms LONG =0
    Lifetime of an authenticated session; 0 is for ever.
controller.quota.window.num INT =11 [1..] low
    Samples kept for the quota on controller mutations.
controller.quota.window.size.seconds INT =1 [1..] low
    Length of each sample for the quota on controller mutations.
delete.records.purgatory.purge.interval.requests INT =1 unsupported
    How many parked deletions pass before finished ones are swept; Penstock frees each at once.
early.start.listeners LIST high unsupported
    Listeners that open before the authorizer has loaded.
fetch.max.bytes INT =57671680 [1024..]
    Bytes that one fetch answer may hold, whatever the client asks for.
fetch.purgatory.purge.interval.requests INT =1000 unsupported
    How many parked fetches pass before finished ones are swept; Penstock frees each at once.
inter.broker.listener.name STRING
    Listener that brokers use among themselves.
kafka.metrics.polling.interval.secs INT =10 [1..] low unsupported
    How often Yammer metric reporters are polled.
kafka.metrics.reporters LIST = low unsupported
    Yammer metric reporter classes.
listener.security.protocol.map STRING \
=SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT low per-broker
    Security protocol of each listener name.
listeners LIST =PLAINTEXT://:9092 high per-broker
    Where to listen: NAME://host:port, separated by commas.
max.connection.creation.rate INT =2147483647 [0..] cluster-wide
    New connections per second that the broker accepts.
max.connections INT =2147483647 [0..] cluster-wide
    Connections that may be open at once.
max.connections.per.ip INT =2147483647 [0..] cluster-wide
    Connections that one address may have open at once.
max.connections.per.ip.overrides STRING = cluster-wide
    Limits for single addresses or host names, as host:count.
max.incremental.fetch.session.cache.slots INT =1000 [0..]
    Fetch sessions kept at once.
metric.reporters LIST =org.apache.kafka.common.metrics.JmxReporter low cluster-wide unsupported
    Classes that receive metrics.
metrics.num.samples INT =2 [1..] low unsupported
    Samples kept to compute a metric.
metrics.recording.level STRING =INFO low unsupported
    Level from which metrics are recorded.
metrics.sample.window.ms LONG =30000 [1..] low unsupported
    Length of a metric's sample.
num.io.threads INT =8 [1..] high cluster-wide unsupported
    Threads that handle requests; Penstock handles them on one loop.
num.network.threads INT =3 [1..] high cluster-wide unsupported
    Threads that read and write sockets; Penstock does it on one loop.
producer.purgatory.purge.interval.requests INT =1000 unsupported
    How many parked produces pass before finished ones are swept; Penstock frees each at once.
queued.max.request.bytes LONG =-1
    Bytes of requests that may wait to be handled before reading stops; -1 is no limit.
queued.max.requests INT =500 [1..] high unsupported
    Requests that may wait to be handled before reading stops.
quota.window.num INT =11 [1..] low
    Samples kept for client quotas.
quota.window.size.seconds INT =1 [1..] low
    Length of each sample for client quotas.
replication.quota.window.num INT =11 [1..] low
    Samples kept for replication quotas.
replication.quota.window.size.seconds INT =1 [1..] low
    Length of each sample for replication quotas.
request.timeout.ms INT =30000 high
    How long an answer from another broker may take; a request for transaction markers is answered after half of it.
share.fetch.purgatory.purge.interval.requests INT =1000 unsupported
    How many parked share fetches pass before finished ones are swept; Penstock frees each at once.
socket.connection.setup.timeout.max.ms LONG =30000 unsupported
    Longest wait for a connection to another node to open.
socket.connection.setup.timeout.ms LONG =10000 unsupported
    First wait for a connection to another node to open.
socket.listen.backlog.size INT =50 [1..]
    Connections that may wait to be accepted.
socket.receive.buffer.bytes INT =102400 high unsupported
    Receive buffer of a client's socket; -1 leaves it to the system.
socket.request.max.bytes INT =104857600 [1..] high
    Largest request that is read; a longer one closes the connection.
socket.send.buffer.bytes INT =102400 high unsupported
    Send buffer of a client's socket; -1 leaves it to the system.
telemetry.max.bytes INT =1048576 [1..] low
    Largest metrics payload that a client may push, after compression.
"""
