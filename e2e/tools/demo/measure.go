package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// latency is how long a change took to reach the file: from the moment at which the
// write was sent to the API server, and from the one at which its answer came. A
// file can be there before the answer is; that counts as 0.
type latency struct{ request, answer time.Duration }

func (l latency) fromRequest() time.Duration { return l.request }
func (l latency) fromAnswer() time.Duration  { return l.answer }

// measure writes with write and waits until a file of the volume holds want. The
// file is read all the time from before the write on, by a goroutine that ends
// before measure does.
func (d *demo) measure(ctx context.Context, path, want string, write func() error) (latency, error) {
	type sighting struct {
		at  time.Time
		err error
	}
	seen := make(chan sighting, 1)
	go func() {
		err := d.becomes(ctx, path, want)
		seen <- sighting{time.Now(), err}
	}()
	sent := time.Now()
	err := write()
	answered := time.Now()
	first := <-seen
	if err != nil {
		return latency{}, fmt.Errorf("write to the API server: %w", err)
	}
	return latency{request: first.at.Sub(sent), answer: max(0, first.at.Sub(answered))}, first.err
}

func median(all []latency, of func(latency) time.Duration) time.Duration {
	times := sorted(all, of)
	return times[(len(times)-1)/2]
}

func slowest(all []latency, of func(latency) time.Duration) time.Duration {
	return slices.Max(sorted(all, of))
}

func sorted(all []latency, of func(latency) time.Duration) []time.Duration {
	var times []time.Duration
	for _, l := range all {
		times = append(times, of(l))
	}
	slices.Sort(times)
	return times
}

func ms(t time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(t)/float64(time.Millisecond))
}
