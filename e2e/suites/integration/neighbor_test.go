package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// neighbor stands for the other pods of the node, which should not notice an attack. One of its volumes is updated, and it publishes more.
type neighbor struct {
	*node
	updated *harness.Volume
	rounds  int
}

// neighborTimes are the times of a neighbor's publishes of an object that the plugin knows, of publishes of one that it has to read, and of
// updates, each with the write to the API server.
type neighborTimes struct{ known, cold, updates []time.Duration }

func (x *neighborTimes) String() string {
	figures := func(all []time.Duration) string {
		slices.Sort(all)
		return fmt.Sprintf("%.0f/%.0f ms", all[len(all)/2].Seconds()*1000, all[len(all)*99/100].Seconds()*1000)
	}
	return fmt.Sprintf("publish %s, cold publish %s, update %s (p50/p99 of %d)", figures(x.known), figures(x.cold), figures(x.updates), len(x.cold))
}

// round publishes two volumes and updates one.
func (b *neighbor) round(times *neighborTimes) {
	b.t.Helper()
	b.rounds++
	name, value := fmt.Sprint("cold-", b.rounds), fmt.Sprint(b.rounds)
	b.configMap(name, map[string]string{"key": value})
	publish := func(configMap string) time.Duration {
		v := b.short(configMap)
		if err := b.StorePod(b.t.Context(), v); err != nil {
			b.t.Fatal(err)
		}
		from := time.Now()
		b.mustPublish(v)
		return time.Since(from)
	}
	times.known = append(times.known, publish("known"))
	times.cold = append(times.cold, publish(name))
	from := time.Now()
	b.configMap("updated", map[string]string{"round": value})
	b.arrives(b.updated, "round", value, soon)
	times.updates = append(times.updates, time.Since(from))
}

// alone measures the neighbor while nobody asks for anything.
func (b *neighbor) alone() *neighborTimes {
	b.t.Helper()
	times := &neighborTimes{}
	for range harness.Scaled(15, 100) {
		b.round(times)
	}
	return times
}

// beside measures the neighbor until attack has returned, at least once. attack runs in a goroutine.
func (b *neighbor) beside(attack func()) (times *neighborTimes, lasted time.Duration) {
	b.t.Helper()
	times = &neighborTimes{}
	ended := make(chan time.Duration, 1)
	begin := time.Now()
	go func() {
		attack()
		ended <- time.Since(begin)
	}()
	for {
		b.round(times)
		select {
		case lasted = <-ended:
			return times, lasted
		default:
		}
	}
}

// isCalm fails the test if the neighbor waited for much longer beside an attack than alone. It is generous, because the machine may be busy
// and all share the processors. The log has the figures.
func isCalm(t *testing.T, alone, beside *neighborTimes) {
	t.Helper()
	for what, times := range map[string][2][]time.Duration{
		"publish": {alone.known, beside.known}, "cold publish": {alone.cold, beside.cold}, "update": {alone.updates, beside.updates},
	} {
		slices.Sort(times[0])
		slices.Sort(times[1])
		without, with := times[0][len(times[0])/2], times[1][len(times[1])/2]
		if with > max(time.Second, 20*without) {
			t.Errorf("the median of another pod's %s was %s beside the attack, and %s alone", what, with, without)
		}
	}
}

// memory is what the plugin and the API server have, in bytes.
type memory struct{ plugin, pluginMost, server int64 }

func (n *node) memory() memory {
	n.t.Helper()
	now, most := n.resident()
	server, _ := residentOf(n.t, shared.APIServerPID())
	return memory{plugin: now, pluginMost: most, server: server}
}

func (m memory) String() string {
	return fmt.Sprintf("plugin %d MiB (at most %d), API server %d MiB", m.plugin>>20, m.pluginMost>>20, m.server>>20)
}

// grewLittle fails the test if the plugin needed much more memory than before. The limit is generous, as it includes garbage.
func grewLittle(t *testing.T, before, after memory) {
	t.Helper()
	if grown := after.pluginMost - before.pluginMost; grown > 100<<20 {
		t.Errorf("the plugin's memory grew by %d MiB", grown>>20)
	}
}
