package publisher

import (
	"testing"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/volume"
)

// TestNeverOlderAfterARestart: an API server that is catching up sends an older version to a process that knows only the volume. The files
// stay until something newer comes.
func TestNeverOlderAfterARestart(t *testing.T) {
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			inBubble(t, func(e *env) {
				app := configMap("app")
				e.objects.put(app, "a", "1")
				older := e.objects.get(app)
				e.objects.put(app, "a", "2")
				r := e.request("v1", "configMap", "app", "writeStrategy", strategy)
				e.publish(r)
				e.halt()
				e.objects.set(app, func() { e.objects.objects[app] = older })
				e.restart()
				e.settle()
				e.wantFiles(r, "a", "2")
				e.publish(r) // as the kubelet does after its own restart
				e.wantFiles(r, "a", "2")
				e.objects.put(app, "a", "3")
				e.settle()
				e.wantFiles(r, "a", "3")
				e.unpublish(r)
			})
		})
	}
}

// TestOlderImmutableObjectsAreReadAgain: an API server that is catching up sends older immutable objects, which nothing follows. All of them are
// read again at a resync, and nothing before it.
func TestOlderImmutableObjectsAreReadAgain(t *testing.T) {
	inBubble(t, func(e *env) {
		app, db := configMap("app"), configMap("db")
		older := map[volume.Ref]*volume.Object{}
		for _, ref := range []volume.Ref{app, db} {
			e.objects.put(ref, ref.Name, "1")
			older[ref] = e.objects.get(ref)
			e.objects.put(ref, ref.Name, "2")
		}
		r := e.request("v1", "sources", "[{configMap: {name: app}}, {configMap: {name: db}}]")
		e.publish(r)
		e.halt()
		for ref, object := range older {
			e.objects.put(ref, ref.Name, "3")
			e.objects.set(ref, func() { e.objects.again[ref], e.objects.objects[ref] = e.objects.objects[ref], object })
		}
		e.restart()
		after(testResync / 2)
		e.settle()
		e.wantFiles(r, "app", "2", "db", "2")
		e.wantCondition(failure.VolumeUpdateFailed, "older than what the files show")
		after(2 * testResync)
		e.settle()
		e.wantFiles(r, "app", "3", "db", "3")
		e.wantCondition(ConditionCurrent)
	})
}
