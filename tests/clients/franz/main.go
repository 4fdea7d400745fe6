// A member of a share group, with franz-go's own share consumer: sharemember BOOTSTRAP GROUP TOPIC COUNT.
//
// It accepts records, releases those whose value begins with "again" at their first delivery, and rejects those whose
// value begins with "bad". It prints one JSON object for each delivery and ends after COUNT different values.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type delivery struct {
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Value     string `json:"value"`
	Answer    string `json:"answer"`
}

func fail(what string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
	os.Exit(1)
}

func main() {
	count, err := strconv.Atoi(os.Args[4])
	if err != nil {
		fail("COUNT", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.ShareGroup(os.Args[2]),
		kgo.ConsumeTopics(os.Args[3]),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			if err := results.Error(); err != nil {
				fmt.Fprintf(os.Stderr, "an acknowledgement failed: %v\n", err)
			}
		}),
	)
	if err != nil {
		fail("client", err)
	}
	out := json.NewEncoder(os.Stdout)
	released, done := map[string]bool{}, map[string]bool{}
	for len(done) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			fail("poll", err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			value, status := string(record.Value), kgo.AckAccept
			switch {
			case strings.HasPrefix(value, "bad"):
				status = kgo.AckReject
			case strings.HasPrefix(value, "again") && !released[value]:
				status = kgo.AckRelease
				released[value] = true
			}
			if status != kgo.AckRelease {
				done[value] = true
			}
			client.MarkAcks(status, record)
			if err := out.Encode(delivery{record.Partition, record.Offset, value, status.String()}); err != nil {
				fail("stdout", err)
			}
		})
		if err := client.FlushAcks(ctx); err != nil {
			fail("acknowledge", err)
		}
	}
	client.Close()
}
