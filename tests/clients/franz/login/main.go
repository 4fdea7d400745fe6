// Writes one record over TLS and reads it back: login TOPIC VALUE < settings.json.
//
// The settings are those of one door of test_secured_clients.py. It ends with 0 if the record was read.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type settings struct {
	Bootstrap   string `json:"bootstrap"`
	Authority   string `json:"authority"`
	Certificate string `json:"certificate"`
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
	IsToken     bool   `json:"is_token"`
}

func fail(what string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
	os.Exit(1)
}

func (s settings) tls() *tls.Config {
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	pem, err := os.ReadFile(s.Authority)
	if err != nil {
		fail("authority", err)
	}
	config.RootCAs.AppendCertsFromPEM(pem)
	if s.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(s.Certificate, s.Certificate)
		if err != nil {
			fail("certificate", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}

func (s settings) mechanism() sasl.Mechanism {
	login := scram.Auth{User: s.User, Pass: s.Password, IsToken: s.IsToken}
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.User, Pass: s.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return login.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return login.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Auth{Token: s.Password}.AsMechanism()
	}
	return nil
}

func main() {
	var door settings
	if err := json.NewDecoder(os.Stdin).Decode(&door); err != nil {
		fail("settings", err)
	}
	topic, value := os.Args[1], os.Args[2]
	options := []kgo.Opt{
		kgo.SeedBrokers(door.Bootstrap),
		kgo.DialTLSConfig(door.tls()),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	if mechanism := door.mechanism(); mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	client, err := kgo.NewClient(options...)
	if err != nil {
		fail("client", err)
	}
	defer client.Close()
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr(); err != nil {
		fail("produce", err)
	}
	for found := false; !found; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			fail("fetch", err)
		}
		fetches.EachRecord(func(record *kgo.Record) { found = found || string(record.Value) == value })
	}
}
