package publisher

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/volume"
)

// fakeEvents keeps what a pod's author would be told.
type fakeEvents struct {
	mu     sync.Mutex
	told   []string
	leaked error
}

func (f *fakeEvents) Warn(pod volume.Pod, reason, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, pod.String()+": "+reason+": "+message)
	f.leaked = errors.Join(f.leaked, leak.Check("an event", reason+": "+message))
}

// leaks returns an error if a value was told.
func (f *fakeEvents) leaks() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leaked
}

// wantEvents fails the test unless there was one event with each text, in this
// order, since the last call.
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

// A pod's author is told at once what its publish waits for, each time that changes,
// and nothing once it waits no more.
func TestEventsOfAPublishThatWaits(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1", "sources", "[{configMap: {name: app, items: [{key: a, path: a}]}}, {secret: {name: db}}]")
		waiting := e.publishing(r)
		e.wantWaiting(waiting)
		e.wantEvents(r.Pod.String() + `: RefNotFound: sources[0].configMap: ConfigMap "shop/app" not found; sources[1].secret: Secret "shop/db" not found`)
		e.p.changed(volume.Account{}, configMap("app")) // nothing new
		e.wantEvents()
		e.objects.put(configMap("app"), "b", "1")
		e.wantEvents(`RefKeyNotFound: sources[0].configMap: ConfigMap "shop/app": configmap references non-existent config key: a`)
		e.objects.put(configMap("app"), "a", "1")
		e.wantEvents(`RefNotFound: sources[1].secret: Secret "shop/db" not found`)
		e.objects.put(secret("db"), "password", canary)
		if err := <-waiting; err != nil {
			t.Fatal(err)
		}
		e.wantProblem(r, "")
		e.wantEvents()
	})
}

// While a volume is mounted there is one event per change of its condition, however
// often a reconcile or a resync finds it so.
func TestEventsOfALiveVolume(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(secret("db"), "password", canary)
		r := e.request("v1", "secret", "db", "items", "[{key: password, path: p}]")
		e.publish(r)
		e.objects.remove(secret("db"))
		e.wantEvents(`RefDeleted: secret: Secret "shop/db" not found`)
		after(3 * testResync)
		e.wantEvents()
		e.objects.put(secret("db"), "other", canary)
		e.wantEvents("RefKeyNotFound: secret: Secret \"shop/db\": references non-existent secret key: password")
		e.objects.put(secret("db"), "password", canary+"2")
		e.settle()
		e.wantFiles(r, "p", canary+"2")
		e.wantEvents()

		e.writes.set(func() error { return errFault }, nil)
		e.objects.put(secret("db"), "password", canary+"3")
		e.wantEvents("VolumeUpdateFailed: write the files of volume v1: ")
		after(testResync)
		e.wantEvents()
		e.writes.set(nil, nil)
		after(testResync)
		e.wantEvents()
		e.wantProblem(r, "")

		e.objects.failWith(secret("db"), fail(ReasonForbidden, "not authorised"))
		e.wantEvents("RefForbidden: not authorised")
	})
}

// A publish that is refused for what its pod's spec can't tell has an event too.
func TestEventsOfARefusedPublish(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = o.MaxVolumeSize }, func(e *env) {
		e.objects.put(configMap("large"), "a", pages(200))
		e.objects.put(secret("db"), "password", pages(200))
		e.objects.failWith(configMap("app"), fail(ReasonForbidden, "not authorised"))
		e.publish(e.request("v1", "configMap", "large"))
		e.wantReason(e.p.Publish(e.ctx, e.request("v2", "secret", "db")), ReasonNodeFull, "")
		e.wantEvents("shop/pod-v2: VolumeUpdateFailed: the files and their inodes take ")
		e.wantReason(e.p.Publish(e.ctx, e.request("v3")), ReasonForbidden, "not authorised")
		e.wantEvents("shop/pod-v3: RefForbidden: not authorised")
		e.wantReason(e.p.Publish(e.ctx, e.request("v4", "colour", "red")), ReasonInvalid, "")
		e.wantEvents()
	})
}

// A node that stays full is told once, whatever its other volumes take at each try.
func TestAFullNodeIsToldOnce(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = o.MaxVolumeSize }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", pages(100))
		e.objects.put(configMap("large"), "a", pages(200))
		large, r := e.request("v1", "configMap", "large"), e.request("v2")
		e.publish(large)
		for _, others := range []int{200, 190, 210} {
			e.objects.put(configMap("large"), "a", pages(others))
			e.settle()
			e.wantReason(e.p.Publish(e.ctx, r), ReasonNodeFull,
				fmt.Sprintf("the files and their inodes take 417792 bytes of memory, the node's other volumes %d, together more than 1048576 (--max-total-size)", taken(others, 1)))
		}
		e.wantEvents("shop/pod-v2: VolumeUpdateFailed: the files and their inodes take 417792 bytes of memory, the node's other volumes 824320")

		// Another failure in between, or an end of it, makes it news again.
		e.objects.failWith(configMap("app"), fail(ReasonForbidden, "not authorised"))
		e.wantReason(e.p.Publish(e.ctx, r), ReasonForbidden, "")
		e.wantEvents("RefForbidden")
		e.objects.failWith(configMap("app"), nil)
		e.wantReason(e.p.Publish(e.ctx, r), ReasonNodeFull, "")
		e.wantEvents("VolumeUpdateFailed")
		e.unpublish(large)
		e.publish(r)
		e.wantEvents()

		// A live volume is told so once, too.
		e.publish(e.request("v3", "configMap", "small", "optional", "true"))
		e.objects.put(configMap("small"), "a", pages(200))
		e.settle()
		e.objects.put(configMap("app"), "a", pages(90))
		after(testResync)
		e.objects.put(configMap("app"), "a", pages(100))
		after(testResync)
		e.wantEvents("shop/pod-v3: VolumeUpdateFailed: the files and their inodes take ")
	})
}

// However often the kubelet tries again, what a publish waits for is told once.
func TestAMissingObjectIsToldOnce(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1", "configMap", "app", "items", "[{key: a, path: a}]")
		for range 3 {
			e.wantReason(e.p.Publish(e.ctx, r), ReasonNotFound, "")
		}
		e.wantEvents("RefNotFound: ")
		e.objects.put(configMap("app"), "b", "1")
		e.wantReason(e.p.Publish(e.ctx, r), ReasonNotFound, "")
		e.wantEvents("RefKeyNotFound: ")
		e.objects.put(configMap("app"), "a", "1")
		e.publish(r)
		e.unpublish(r)
		e.objects.remove(configMap("app"))
		e.wantReason(e.p.Publish(e.ctx, r), ReasonNotFound, "")
		e.wantEvents("RefNotFound: ")
		e.wantNothing()
	})
}
