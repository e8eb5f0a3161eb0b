package publisher

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

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
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, pod.String()+": "+reason+": "+message)
	f.leaked = errors.Join(f.leaked, leak.Check("an event", reason+": "+message))
}

// leaks returns an error if an event has a value.
func (f *fakeEvents) leaks() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leaked
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

// A pod's author gets an event at once for what the publish waits for, and again after each change. There is none after the publish.
func TestEventsOfAPublishThatWaits(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1", "sources", "[{configMap: {name: app, items: [{key: a, path: a}]}}, {secret: {name: db}}]")
		waiting := e.waiting(r)
		e.wantEvents(r.Pod.String() + `: RefNotFound: sources[0].configMap: ConfigMap "shop/app" not found; sources[1].secret: Secret "shop/db" not found`)
		e.p.table.objectChanged(volume.ServiceAccount{}, configMap("app")) // nothing new
		e.wantEvents()
		e.objects.put(configMap("app"), "b", "1")
		e.wantEvents(`RefKeyNotFound: sources[0].configMap: ConfigMap "shop/app": configmap references non-existent config key: a`)
		e.objects.put(configMap("app"), "a", "1")
		e.wantEvents(`RefNotFound: sources[1].secret: Secret "shop/db" not found`)
		e.objects.put(secret("db"), "password", canary)
		e.wantDone(waiting)
		e.settle()
		e.wantProblem(r, "")
		e.wantEvents()
	})
}

// While a volume is mounted there is one event per change of its condition, however many reconciles or resyncs find it.
func TestEventsOfALiveVolume(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(secret("db"), "password", canary)
		r := e.publishNew("v1", "secret", "db", "items", "[{key: password, path: p}]")
		e.objects.remove(secret("db"))
		e.wantEvents(`RefDeleted: secret: Secret "shop/db" not found`)
		after(3 * testResync)
		e.wantEvents()
		e.objects.put(secret("db"), "other", canary)
		e.wantEvents("RefKeyNotFound: secret: Secret \"shop/db\": references non-existent secret key: password")
		e.update(secret("db"), "password", canary+"2")
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

		e.objects.failWith(secret("db"), errForbiddenObject)
		e.wantEvents("RefForbidden: configmaps \"app\" is forbidden: no")
	})
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
