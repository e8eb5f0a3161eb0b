package publisher

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/volume"
)

// fakeEvents keeps the events for a pod's author.
type fakeEvents struct {
	guard
	told   []string
	leaked error
}

func (f *fakeEvents) Warn(pod volume.Pod, reason, message string) {
	f.locked(func() {
		f.told = append(f.told, pod.String()+": "+reason+": "+message)
		f.leaked = errors.Join(f.leaked, leak.Check("an event", reason+": "+message))
	})
}

// wantEvents fails the test unless there was one event with each text, in this order, since the last call.
func (e *env) wantEvents(texts ...string) {
	e.Helper()
	synctest.Wait()
	e.events.mu.Lock()
	defer e.events.mu.Unlock()
	if len(e.events.told) != len(texts) {
		e.Errorf("events: %q, want %q", e.events.told, texts)
	}
	for i, text := range texts[:min(len(texts), len(e.events.told))] {
		if !strings.Contains(e.events.told[i], text) {
			e.Errorf("event %q, want %q in it", e.events.told[i], text)
		}
	}
	e.events.told = nil
}

// A publish that is refused for a reason that is not visible in the pod's spec also has an event.
func TestEventsOfARefusedPublish(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = o.MaxVolumeSize }, func(e *env) {
		e.objects.put(configMap("large"), "a", pages(200))
		e.objects.put(secret("db"), "password", pages(200))
		e.objects.failWith(configMap("app"), errForbiddenObject)
		e.run()
		e.publish(e.request("v1", "configMap", "large"))
		e.wantReason(e.p.Publish(e.ctx, e.request("v2", "secret", "db")), failure.ReasonNodeFull, "")
		e.wantEvents("shop/pod-v2: VolumeUpdateFailed: the files and their inodes take ")
		e.wantReason(e.p.Publish(e.ctx, e.request("v3")), failure.ReasonForbidden, `configmaps "app" is forbidden: no`)
		e.wantEvents("shop/pod-v3: RefForbidden: configmaps \"app\" is forbidden: no")
		e.wantReason(e.p.Publish(e.ctx, e.request("v4", "colour", "red")), failure.ReasonInvalid, "")
		e.wantEvents()
	})
}

// fakeObserver keeps the calls.
type fakeObserver struct {
	guard
	writes     []string
	bytes      int64
	propagated []time.Duration
	opened     []time.Duration
}

func (o *fakeObserver) RecordWrite(changed bool, bytes int64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	what := map[bool]string{true: "changed", false: "unchanged"}[changed]
	if err != nil {
		what = "error"
	}
	o.writes, o.bytes = append(o.writes, what), o.bytes+bytes
}

func (o *fakeObserver) Propagated(took time.Duration) {
	o.locked(func() { o.propagated = append(o.propagated, took) })
}

func (o *fakeObserver) Opened(took time.Duration) {
	o.locked(func() { o.opened = append(o.opened, took) })
}

// take returns the calls since the last take.
func (o *fakeObserver) take() (writes []string, bytes int64, propagated []time.Duration) {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	writes, bytes, propagated = o.writes, o.bytes, o.propagated
	o.writes, o.bytes, o.propagated = nil, 0, nil
	return writes, bytes, propagated
}

// TestObserver: the time of a change starts with its event, whatever delays the write. There is no time if no change waited.
func TestObserver(t *testing.T) {
	o := &fakeObserver{}
	inBubbleWith(t, func(opts *Options) { opts.Observer = o }, func(e *env) {
		want := func(writes []string, bytes int64, propagated ...time.Duration) {
			t.Helper()
			gotWrites, gotBytes, got := o.take()
			if !slices.Equal(gotWrites, writes) || gotBytes != bytes || !slices.Equal(got, propagated) {
				t.Errorf("heard %v, %d bytes, %v, want %v, %d bytes, %v", gotWrites, gotBytes, got, writes, bytes, propagated)
			}
		}
		app := configMap("app")
		e.objects.put(app, "a", "1")
		e.publish(e.request("v1"))
		want([]string{"changed"}, 1)
		after(time.Minute + testResync)
		want(nil, 0)

		e.objects.put(app, "a", "22")
		want([]string{"changed"}, 2, 0)
		e.objects.put(app, "a", "x")
		e.objects.put(app, "a", "333") // readers of the last version have their time, and of what waits only the last one is written
		after(time.Second)
		want([]string{"changed"}, 3, readTime)

		after(time.Minute)
		e.writes.set(func() error { return errFault }, nil)
		e.objects.put(app, "a", "4")
		after(retryMin / 2)
		e.writes.set(nil, nil)
		e.objects.put(app, "a", "5")
		after(retryMin / 2)
		want([]string{"error", "changed"}, 1, retryMin/2)

		// Neither a deletion nor what follows it delays a change.
		e.objects.remove(app)
		after(time.Hour)
		want(nil, 0)
		e.objects.put(app, "a", "6")
		want([]string{"changed"}, 1, 0)

		after(time.Minute)
		e.objects.put(app, "a", strings.Repeat("x", 2*mebibyte))
		after(time.Minute)
		if writes, _, got := o.take(); len(got) > 0 || !slices.Contains(writes, "error") {
			t.Errorf("heard %v, %v of what is too large", writes, got)
		}
		e.objects.put(app, "a", "7")
		want([]string{"changed"}, 1, 0)

		// A change that is shown counts no longer, although another object fails.
		e.objects.put(configMap("new"), "n", "1")
		e.objects.put(secret("db"), "p", "1")
		e.publishNew("v2", "sources", "[{configMap: {name: new}}, {secret: {name: db}}]")
		e.objects.failWith(secret("db"), errFault)
		e.update(configMap("new"), "n", "2")
		o.take()
		after(time.Hour)
		e.objects.put(configMap("new"), "n", "3")
		want([]string{"changed"}, 1, 0)
	})
}
