"""Contains the broker properties of TLS, SASL, tokens and policies. `broker.py` defines the format."""

ROWS = """
alter.config.policy.class.name CLASS low unsupported
    Class that may refuse changes of configs.
authorizer.class.name STRING = low
    Class that authorizes requests; without it every request is allowed.
client.quota.callback.class CLASS low unsupported
    Class that decides quotas instead of the built-in rules.
create.topic.policy.class.name CLASS low unsupported
    Class that may refuse new topics.
delegation.token.expiry.check.interval.ms LONG =3600000 [1..] low
    How often expired delegation tokens are removed.
delegation.token.expiry.time.ms LONG =86400000 [1..]
    How long a delegation token lives without being renewed.
delegation.token.max.lifetime.ms LONG =604800000 [1..]
    How long a delegation token may live when renewed.
delegation.token.secret.key PASSWORD
    Secret that signs delegation tokens, the same on all nodes.
principal.builder.class CLASS \
=org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder per-broker unsupported
    Class that turns an authenticated peer into a principal.
sasl.client.callback.handler.class CLASS unsupported
    Class that answers a SASL client's questions.
sasl.enabled.mechanisms LIST =GSSAPI per-broker
    SASL mechanisms that clients may use.
sasl.jaas.config PASSWORD per-broker
    JAAS login of a listener and mechanism.
sasl.kerberos.kinit.cmd STRING =/usr/bin/kinit per-broker unsupported
    Path of kinit.
sasl.kerberos.min.time.before.relogin LONG =60000 per-broker unsupported
    Shortest time between two Kerberos logins.
sasl.kerberos.principal.to.local.rules LIST =DEFAULT per-broker unsupported
    Rules that shorten Kerberos principals to user names.
sasl.kerberos.service.name STRING per-broker unsupported
    Kerberos name of the service.
sasl.kerberos.ticket.renew.jitter DOUBLE =0.05 per-broker unsupported
    Random share added to the time of renewal.
sasl.kerberos.ticket.renew.window.factor DOUBLE =0.8 per-broker unsupported
    Share of a ticket's life after which it is renewed.
sasl.login.callback.handler.class CLASS unsupported
    Class that answers a login's questions.
sasl.login.class CLASS unsupported
    Class that logs in.
sasl.login.connect.timeout.ms INT low unsupported
    How long a connection to the identity provider may take.
sasl.login.read.timeout.ms INT low unsupported
    How long an answer of the identity provider may take.
sasl.login.refresh.buffer.seconds SHORT =300 per-broker unsupported
    Time before expiry at which credentials are refreshed at the latest.
sasl.login.refresh.min.period.seconds SHORT =60 per-broker unsupported
    Shortest time between two refreshes of credentials.
sasl.login.refresh.window.factor DOUBLE =0.8 per-broker unsupported
    Share of a credential's life after which it is refreshed.
sasl.login.refresh.window.jitter DOUBLE =0.05 per-broker unsupported
    Random share added to the time of refresh.
sasl.login.retry.backoff.max.ms LONG =10000 low unsupported
    Longest pause between attempts to log in.
sasl.login.retry.backoff.ms LONG =100 low unsupported
    First pause between attempts to log in.
sasl.mechanism.controller.protocol STRING =GSSAPI high
    SASL mechanism towards controllers.
sasl.mechanism.inter.broker.protocol STRING =GSSAPI per-broker
    SASL mechanism among brokers.
sasl.oauthbearer.assertion.algorithm STRING =RS256 {ES256|RS256}~ unsupported
    Algorithm that signs an OAuth assertion.
sasl.oauthbearer.assertion.claim.aud STRING unsupported
    Audience claim of an OAuth assertion.
sasl.oauthbearer.assertion.claim.exp.seconds INT =300 [0..86400] low unsupported
    Lifetime of an OAuth assertion.
sasl.oauthbearer.assertion.claim.iss STRING unsupported
    Issuer claim of an OAuth assertion.
sasl.oauthbearer.assertion.claim.jti.include BOOLEAN =false unsupported
    Whether an OAuth assertion carries an id of its own.
sasl.oauthbearer.assertion.claim.nbf.seconds INT =60 [0..3600] low unsupported
    How long before its creation an OAuth assertion is already valid.
sasl.oauthbearer.assertion.claim.sub STRING unsupported
    Subject claim of an OAuth assertion.
sasl.oauthbearer.assertion.file STRING unsupported
    File with a ready-made OAuth assertion.
sasl.oauthbearer.assertion.private.key.file STRING unsupported
    Key file that signs OAuth assertions.
sasl.oauthbearer.assertion.private.key.passphrase PASSWORD unsupported
    Passphrase of the key file that signs OAuth assertions.
sasl.oauthbearer.assertion.template.file STRING unsupported
    File with fixed header and claims of OAuth assertions.
sasl.oauthbearer.client.credentials.client.id STRING
    OAuth client id.
sasl.oauthbearer.client.credentials.client.secret PASSWORD
    OAuth client secret.
sasl.oauthbearer.clock.skew.seconds INT =30 low
    Difference of clocks that is tolerated in tokens.
sasl.oauthbearer.expected.audience LIST = high
    Accepted audiences; a token must name at least one of them.
sasl.oauthbearer.expected.issuer STRING high
    Issuer that a token must name.
sasl.oauthbearer.jwks.endpoint.refresh.ms LONG =3600000 low
    How often the signing keys are fetched anew.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms LONG =10000 low
    Longest pause between attempts to fetch the signing keys.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms LONG =100 low
    First pause between attempts to fetch the signing keys.
sasl.oauthbearer.jwks.endpoint.url STRING
    Where the signing keys are published.
sasl.oauthbearer.jwt.retriever.class CLASS =org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever unsupported
    Class that gets tokens.
sasl.oauthbearer.jwt.validator.class CLASS =org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator unsupported
    Class that checks tokens.
sasl.oauthbearer.scope STRING
    Scope to ask for.
sasl.oauthbearer.scope.claim.name STRING =scope low
    Name of the scope claim.
sasl.oauthbearer.sub.claim.name STRING =sub low
    Name of the subject claim.
sasl.oauthbearer.token.endpoint.url STRING
    Where tokens are issued.
sasl.server.callback.handler.class CLASS unsupported
    Class that answers a SASL server's questions.
sasl.server.max.receive.size INT =524288
    Largest SASL message accepted before authentication.
security.inter.broker.protocol STRING =PLAINTEXT {PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL}
    Security protocol among brokers when no listener name is given.
security.providers STRING low unsupported
    Java security providers to add.
ssl.allow.dn.changes BOOLEAN =false low unsupported
    Allow a new keystore with another distinguished name.
ssl.allow.san.changes BOOLEAN =false low unsupported
    Allow a new keystore that drops alternative names.
ssl.cipher.suites LIST = per-broker
    TLS cipher suites that may be used; empty is the library's choice.
ssl.client.auth STRING =none {required|requested|none} per-broker
    Whether clients must, may or need not show a certificate.
ssl.enabled.protocols LIST =TLSv1.2,TLSv1.3 per-broker
    TLS versions that may be used.
ssl.endpoint.identification.algorithm STRING =https low per-broker
    How a server's host name is checked; empty is not at all.
ssl.engine.factory.class CLASS low per-broker unsupported
    Class that makes TLS engines.
ssl.key.password PASSWORD per-broker
    Password of the private key.
ssl.keymanager.algorithm STRING =SunX509 per-broker unsupported
    Java key manager algorithm.
ssl.keystore.certificate.chain PASSWORD per-broker
    Certificate chain as PEM text.
ssl.keystore.key PASSWORD per-broker
    Private key as PEM text.
ssl.keystore.location STRING per-broker
    File with the private key and its certificates.
ssl.keystore.password PASSWORD per-broker
    Password of the file with the private key and its certificates.
ssl.keystore.type STRING =JKS per-broker
    Format of the file with the private key and its certificates.
ssl.principal.mapping.rules STRING =DEFAULT low
    Rules that turn a certificate's name into a user name.
ssl.protocol STRING =TLSv1.3 per-broker unsupported
    TLS version to start from.
ssl.provider STRING per-broker unsupported
    Java security provider for TLS.
ssl.secure.random.implementation STRING low per-broker unsupported
    Random generator for TLS.
ssl.trustmanager.algorithm STRING =PKIX per-broker unsupported
    Java trust manager algorithm.
ssl.truststore.certificates PASSWORD per-broker
    Trusted certificates as PEM text.
ssl.truststore.location STRING per-broker
    File with trusted certificates.
ssl.truststore.password PASSWORD per-broker
    Password of the file with trusted certificates.
ssl.truststore.type STRING =JKS per-broker
    Format of the file with trusted certificates.
"""
